#include "common/base/json.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>

#include "common/base/check.hpp"

namespace ho {

namespace {

constexpr std::string_view kReplacement = "\\ufffd";

void append_escape(std::string& out, unsigned code) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  out += "\\u";
  for (unsigned shift = 16; shift > 0; shift -= 4) out += kDigits[(code >> (shift - 4)) & 15U];
}

/// Length of the well-formed UTF-8 sequence at the front of `text`; 0 where there is none.
std::size_t utf8_length(std::string_view text) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = at(0);
  const std::size_t length = lead < 0x80   ? 1
                             : lead < 0xc2 ? 0
                             : lead < 0xe0 ? 2
                             : lead < 0xf0 ? 3
                                           : 4;
  if (length == 0 || lead > 0xf4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((at(i) & 0xc0U) != 0x80) return 0;
  }
  // The second byte reveals overlong forms, surrogates and code points beyond U+10FFFF.
  if (lead == 0xe0 && at(1) < 0xa0) return 0;
  if (lead == 0xed && at(1) > 0x9f) return 0;
  if (lead == 0xf0 && at(1) < 0x90) return 0;
  if (lead == 0xf4 && at(1) > 0x8f) return 0;
  return length;
}

bool needs_escape(char c) {
  return static_cast<unsigned char>(c) < 0x20 || c == 0x7f || c == '"' || c == '\\' || c == '<' ||
         c == '>' || c == '&';
}

}  // namespace

std::string json_quote(std::string_view text) {
  std::string out = "\"";
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = utf8_length(text.substr(i));
    const std::string_view sequence = text.substr(i, length == 0 ? 1 : length);
    i += sequence.size();
    if (length == 0) {
      out += kReplacement;
    } else if (length == 1 && needs_escape(sequence[0])) {
      append_escape(out, static_cast<unsigned char>(sequence[0]));
    } else if (sequence == "\xe2\x80\xa8" || sequence == "\xe2\x80\xa9") {
      append_escape(out, sequence[2] == '\xa8' ? 0x2028 : 0x2029);
    } else {
      out += sequence;
    }
  }
  return out + '"';
}

void JsonWriter::separate() {
  if (need_comma_) text_ += ',';
  need_comma_ = true;
}

JsonWriter& JsonWriter::raw(std::string_view token) {
  separate();
  text_ += token;
  return *this;
}

JsonWriter& JsonWriter::begin_object() {
  raw("{");
  closers_ += '}';
  need_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::begin_array() {
  raw("[");
  closers_ += ']';
  need_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::end() {
  HO_CHECK(!closers_.empty());
  text_ += closers_.back();
  closers_.pop_back();
  need_comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
  raw(json_quote(name));
  text_ += ':';
  need_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::value(std::string_view text) { return raw(json_quote(text)); }

JsonWriter& JsonWriter::value(double number) {
  if (!std::isfinite(number)) return raw("null");
  std::array<char, 32> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number);
  return raw({buffer.data(), static_cast<std::size_t>(end.ptr - buffer.data())});
}

}  // namespace ho
