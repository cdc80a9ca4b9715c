#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/result.hpp"

namespace ho::importers {

/// Reads JSON and Python's repr() of lists, tuples, numbers, strings and constants from text that
/// is not trusted, one value after the other. Builds nothing, so its memory does not depend on the
/// text; nesting beyond 64 levels is an error. A value: a position in the text.
class LiteralCursor {
 public:
  explicit LiteralCursor(std::string_view text) : text_(text) {}

  /// Whether the next character after white space is `c`; then it is taken.
  [[nodiscard]] bool take(char c);
  /// The next character after white space, not taken; '\0' at the end.
  [[nodiscard]] char peek();
  /// Only white space is left.
  [[nodiscard]] bool at_end() { return peek() == '\0' && at_ == text_.size(); }

  /// A string in single or double quotes, its escapes resolved. At most 1 MiB.
  [[nodiscard]] Result<std::string> string();
  /// The characters of the next value, which is a number or a word (null, None, True, inf).
  [[nodiscard]] Result<std::string_view> word();
  /// The text of the next value, whatever it is.
  [[nodiscard]] Result<std::string_view> value();

  /// Calls `each()` before every item of a list or tuple; it must read the item.
  template <typename Each>
  [[nodiscard]] Result<void> list(const Each& each) {
    const char close = take('[') ? ']' : take('(') ? ')' : '\0';
    if (close == '\0') return bad("a list is expected");
    while (!take(close)) {
      if (auto read = each(); !read) return read.error();
      if (take(',')) continue;
      if (take(close)) break;
      return bad("',' or the end of the list is expected");
    }
    return {};
  }
  /// Calls `each(key)` for every field of an object; it must read the field's value.
  template <typename Each>
  [[nodiscard]] Result<void> object(const Each& each) {
    if (!take('{')) return bad("an object is expected");
    while (!take('}')) {
      auto key = string();
      if (!key) return key.error();
      if (!take(':')) return bad("':' is expected");
      if (auto read = each(std::string_view(*key)); !read) return read.error();
      if (take(',')) continue;
      if (take('}')) break;
      return bad("',' or the end of the object is expected");
    }
    return {};
  }

  /// kCorrupt with the position.
  [[nodiscard]] Error bad(std::string_view reason) const;

 private:
  void skip_space();
  [[nodiscard]] Result<void> skip_string();

  std::string_view text_;
  std::size_t at_ = 0;
};

/// The whole of `word` as a number; nothing for anything else. "inf" and "nan" are numbers too.
[[nodiscard]] std::optional<double> to_number(std::string_view word);
/// The same for whole numbers of 0 or more, below 2^64.
[[nodiscard]] std::optional<std::uint64_t> to_count(std::string_view word);

}  // namespace ho::importers
