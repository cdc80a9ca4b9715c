#include "tools/importers/bytes/literal_cursor.hpp"

#include <charconv>

namespace ho::importers {

namespace {

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

bool ends_word(char c) {
  return is_space(c) || c == ',' || c == ']' || c == ')' || c == '}' || c == ':' || c == '[' ||
         c == '(' || c == '{' || c == '"' || c == '\'';
}

void append_utf8(std::string& out, std::uint32_t code) {
  const auto tail = [&out](std::uint32_t bits) {
    out += static_cast<char>(0x80U | (bits & 0x3fU));
  };
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xc0U | (code >> 6U));
    tail(code);
  } else {
    // Each half of a surrogate pair is encoded alone; clean_name() turns it into '?'.
    out += static_cast<char>(0xe0U | (code >> 12U));
    tail(code >> 6U);
    tail(code);
  }
}

}  // namespace

Error LiteralCursor::bad(std::string_view reason) const {
  return Error(Errc::kCorrupt, "at byte " + std::to_string(at_) + ": " + std::string(reason));
}

void LiteralCursor::skip_space() {
  while (at_ < text_.size() && is_space(text_[at_])) ++at_;
}

char LiteralCursor::peek() {
  skip_space();
  return at_ < text_.size() ? text_[at_] : '\0';
}

bool LiteralCursor::take(char c) {
  if (peek() != c || at_ >= text_.size()) return false;
  ++at_;
  return true;
}

Result<std::string> LiteralCursor::string() {
  constexpr std::size_t kBytesMax = 1U << 20U;
  const char quote = peek();
  if (quote != '"' && quote != '\'') return bad("a string is expected");
  ++at_;
  std::string out;
  while (at_ < text_.size()) {
    const char c = text_[at_++];
    if (c == quote) return out;
    if (out.size() > kBytesMax) return bad("a string of more than 1 MiB");
    if (c != '\\') {
      out += c;
      continue;
    }
    if (at_ >= text_.size()) break;
    const char escape = text_[at_++];
    const std::size_t digits = escape == 'u' ? 4 : escape == 'x' ? 2 : 0;
    if (digits != 0) {
      std::uint32_t code = 0;
      const char* const first = text_.data() + at_;
      if (text_.size() - at_ < digits) break;
      const auto [end, error] = std::from_chars(first, first + digits, code, 16);
      if (error != std::errc() || end != first + digits) return bad("an invalid escape");
      at_ += digits;
      append_utf8(out, code);
      continue;
    }
    switch (escape) {
      case 'n': out += '\n'; break;
      case 't': out += '\t'; break;
      case 'r': out += '\r'; break;
      case 'b': out += '\b'; break;
      case 'f': out += '\f'; break;
      default: out += escape;
    }
  }
  return bad("the text ends within a string");
}

Result<std::string_view> LiteralCursor::word() {
  if (peek() == '\0') return bad("the text ends where a value is expected");
  const std::size_t begin = at_;
  while (at_ < text_.size() && !ends_word(text_[at_])) ++at_;
  if (at_ == begin) return bad("a number or a word is expected");
  return text_.substr(begin, at_ - begin);
}

Result<void> LiteralCursor::skip_string() {
  const char quote = text_[at_++];
  while (at_ < text_.size()) {
    const char c = text_[at_++];
    if (c == quote) return {};
    if (c == '\\') ++at_;
  }
  at_ = text_.size();
  return bad("the text ends within a string");
}

Result<std::string_view> LiteralCursor::value() {
  constexpr std::size_t kDepthMax = 64;
  skip_space();
  const std::size_t begin = at_;
  std::string closers;
  do {
    const char c = peek();
    if (c == '\0') return bad("the text ends within a value");
    if (c == '[' || c == '(' || c == '{') {
      if (closers.size() >= kDepthMax) return bad("nested more than 64 levels deep");
      closers += c == '[' ? ']' : c == '(' ? ')' : '}';
      ++at_;
    } else if (c == ']' || c == ')' || c == '}') {
      if (closers.empty() || closers.back() != c)
        return bad("a closing bracket has no opening one");
      closers.pop_back();
      ++at_;
    } else if (c == '"' || c == '\'') {
      if (auto skipped = skip_string(); !skipped) return skipped.error();
    } else if (c == ',' || c == ':') {
      if (closers.empty()) return bad("a value is expected");
      ++at_;
    } else if (auto skipped = word(); !skipped) {
      return skipped.error();
    }
  } while (!closers.empty());
  return text_.substr(begin, at_ - begin);
}

std::optional<double> to_number(std::string_view word) {
  double number = 0;
  if (!word.empty() && word.front() == '+') word.remove_prefix(1);
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return number;
}

std::optional<std::uint64_t> to_count(std::string_view word) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return number;
}

}  // namespace ho::importers
