#include "common/text/json.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>

#include "common/base/check.hpp"
#include "common/text/utf8.hpp"

namespace ho {

namespace {

constexpr std::string_view kReplacement = "\\ufffd";

void append_escape(std::string& out, unsigned code) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  out += "\\u";
  for (unsigned shift = 16; shift > 0; shift -= 4) out += kDigits[(code >> (shift - 4)) & 15U];
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
