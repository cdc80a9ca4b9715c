#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/result.hpp"

namespace ho::importers {

/// Reads JSON and Python's repr() of lists, tuples, numbers, strings and constants from untrusted
/// text, one value after the other. Builds no tree, so its memory does not depend on the text.
/// Nesting beyond 64 levels is an error. A value: a position in the text.
class LiteralCursor {
 public:
  explicit LiteralCursor(std::string_view text) : text_(text) {}

  /// Consumes the next character after white space if it is `c`.
  [[nodiscard]] bool take(char c);
  /// The next character after white space, not consumed; '\0' at the end.
  [[nodiscard]] char peek();
  /// True if only white space is left.
  [[nodiscard]] bool at_end() { return peek() == '\0' && at_ == text_.size(); }

  /// Reads a string in single or double quotes and resolves its escapes. At most 1 MiB.
  [[nodiscard]] Result<std::string> string();
  /// Reads the characters of a number or word (null, None, True, inf).
  [[nodiscard]] Result<std::string_view> word();
  /// Reads the text of the next value of any kind.
  [[nodiscard]] Result<std::string_view> value();

  /// Calls `each()` before each item of a list or tuple; `each` must read the item.
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
  /// Calls `each(key)` for each field of an object; `each` must read the field's value.
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

  /// Makes a kCorrupt error with the position.
  [[nodiscard]] Error bad(std::string_view reason) const;

 private:
  void skip_space();
  [[nodiscard]] Result<void> skip_string();

  std::string_view text_;
  std::size_t at_ = 0;
};

/// Parses the whole of `word` as a number; nullopt if it is not one. Accepts "inf" and "nan".
[[nodiscard]] std::optional<double> to_number(std::string_view word);
/// Parses a whole number of 0 or more, below 2^64.
[[nodiscard]] std::optional<std::uint64_t> to_count(std::string_view word);

}  // namespace ho::importers
