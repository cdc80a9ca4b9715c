#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/cli/console.hpp"

namespace ho::cli {

/// Width of tables and help pages.
inline constexpr std::size_t kColumns = 80;

/// `text` (UTF-8) made safe for a terminal: controls, marks that change the direction of what
/// follows, and bytes that are no UTF-8 become '?'.
[[nodiscard]] std::string printable(std::string_view text);

/// What std::printf() would print.
[[nodiscard]] std::string formatted(const char* format, ...) __attribute__((format(printf, 1, 2)));

/// Number of characters in `text`. Each counts as one column, also those of wide scripts.
[[nodiscard]] std::size_t columns_of(std::string_view text);

/// `text` behind `head`, broken at spaces so that lines stay within `columns`; further lines begin
/// below its first character. A word that is longer stands alone. Ends with a newline.
[[nodiscard]] std::string wrapped(std::string_view head, std::string_view text,
                                  std::size_t columns = kColumns);

/// Named facts, a line each: "  device memory  563 MiB -> 337 MiB". A value.
class Facts {
 public:
  explicit Facts(std::string title = {}) : title_(std::move(title)) {}
  Facts& add(std::string name, std::string value);

  /// Lines are broken at kColumns unless the format is wide. Safe for a terminal.
  [[nodiscard]] std::string text(Format format) const;

 private:
  std::string title_;
  std::vector<std::pair<std::string, std::string>> facts_;
};

/// Rows under headings, columns aligned. A value.
class Table {
 public:
  enum Align : std::uint8_t { kLeft, kRight };
  enum Shown : std::uint8_t { kAlways, kWide };
  struct Column {
    std::string heading;
    Align align = kLeft;
    Shown shown = kAlways;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  /// @param cells  one a column.
  void add(std::vector<std::string> cells);

  /// Without the wide columns, and cells cut so that a line stays within kColumns; or as it is.
  [[nodiscard]] std::string text(Format format) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// A table's cell for a word that may be missing.
[[nodiscard]] inline std::string word_or_dash(const std::string& word) {
  return word.empty() ? "-" : word;
}

}  // namespace ho::cli
