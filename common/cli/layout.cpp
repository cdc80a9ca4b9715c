#include "common/cli/layout.hpp"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <iterator>

#include "common/base/check.hpp"

namespace ho::cli {
namespace {

constexpr std::size_t kGap = 2;          ///< between columns
constexpr std::size_t kCellColumns = 8;  ///< no cell is cut below this

/// One character of UTF-8; of no bytes where there is none.
struct Character {
  char32_t code_point = 0;
  std::size_t bytes = 0;
};

Character first_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return {byte(0), 1};
  const std::size_t bytes = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
  if (byte(0) < 0xc2 || byte(0) > 0xf4 || text.size() < bytes) return {};
  char32_t code_point = byte(0) & (0xffU >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0U) != 0x80) return {};
    code_point = code_point << 6U | (byte(i) & 0x3fU);
  }
  constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};  // no longer form than need be
  if (code_point < kLeast[bytes] || code_point > 0x10ffff) return {};
  return {code_point, bytes};
}

/// What a terminal acts on instead of showing it: controls, and marks without width that change the
/// direction or the look of what surrounds them.
bool is_control(char32_t c) {
  constexpr std::pair<char32_t, char32_t> kRanges[] = {
      {0x00, 0x1f},     {0x7f, 0x9f},     {0xad, 0xad},      {0x61c, 0x61c},
      {0x200b, 0x200f}, {0x2028, 0x202e}, {0x2060, 0x206f},  {0xd800, 0xdfff},
      {0xfeff, 0xfeff}, {0xfff9, 0xfffb}, {0xe0000, 0xe007f}};
  return std::any_of(std::begin(kRanges), std::end(kRanges),
                     [c](const auto& range) { return range.first <= c && c <= range.second; });
}

/// Bytes of the first `columns` characters.
std::size_t bytes_of_columns(std::string_view text, std::size_t columns) {
  std::size_t at = 0;
  for (; columns > 0 && at < text.size(); --columns) {
    at += std::max<std::size_t>(first_character(text.substr(at)).bytes, 1);
  }
  return std::min(at, text.size());
}

std::string cut(const std::string& text, std::size_t columns) {
  if (columns_of(text) <= columns) return text;
  return text.substr(0, bytes_of_columns(text, columns - 2)) + "..";
}

/// Takes from the widest column until all fit.
void shrink(std::vector<std::size_t>& widths) {
  const auto total = [&] {
    std::size_t sum = kGap * (widths.size() - 1);
    for (const std::size_t width : widths) sum += width;
    return sum;
  };
  while (total() > kColumns) {
    const auto widest = std::max_element(widths.begin(), widths.end());
    if (*widest <= kCellColumns) return;
    *widest -= 1;
  }
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Character next = first_character(text);
    if (next.bytes == 0 || is_control(next.code_point)) {
      out += '?';
    } else {
      out += text.substr(0, next.bytes);
    }
    text.remove_prefix(std::max<std::size_t>(next.bytes, 1));
  }
  return out;
}

std::string formatted(const char* format, ...) {
  va_list values;
  va_start(values, format);
  va_list again;
  va_copy(again, values);
  const int length = std::vsnprintf(nullptr, 0, format, values);
  va_end(values);
  HO_CHECK(length >= 0);
  std::string text(static_cast<std::size_t>(length), '\0');
  std::vsnprintf(text.data(), text.size() + 1, format, again);
  va_end(again);
  return text;
}

std::size_t columns_of(std::string_view text) {
  std::size_t count = 0;
  for (std::size_t at = 0; at < text.size(); ++count) {
    at += std::max<std::size_t>(first_character(text.substr(at)).bytes, 1);
  }
  return count;
}

std::string wrapped(std::string_view head, std::string_view text, std::size_t columns) {
  const std::size_t indent = columns_of(head);
  std::string out(head);
  std::size_t at = indent;
  bool first = true;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    const std::size_t width = columns_of(word);
    if (!first && at + 1 + width > columns) {
      out += "\n" + std::string(indent, ' ');
      at = indent;
    } else if (!first) {
      out += ' ';
      at += 1;
    }
    out += word;
    at += width;
    first = false;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out + "\n";
}

Facts& Facts::add(std::string name, std::string value) {
  facts_.emplace_back(std::move(name), std::move(value));
  return *this;
}

std::string Facts::text(Format format) const {
  const std::size_t columns = format == Format::kWide ? SIZE_MAX : kColumns;
  std::size_t width = 0;
  for (const auto& [name, value] : facts_) width = std::max(width, columns_of(name));
  std::string out;
  if (!title_.empty()) out += wrapped("", printable(title_), columns);
  for (const auto& [name, value] : facts_) {
    const std::string head = "  " + name + std::string(width - columns_of(name) + kGap, ' ');
    out += wrapped(head, printable(value), columns);
  }
  return out;
}

void Table::add(std::vector<std::string> cells) {
  HO_CHECK(cells.size() == columns_.size());
  for (std::string& cell : cells) cell = printable(cell);
  rows_.push_back(std::move(cells));
}

std::string Table::text(Format format) const {
  const bool wide = format == Format::kWide;
  std::vector<std::size_t> shown;
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    if (!wide && columns_[c].shown == kWide) continue;
    shown.push_back(c);
    widths.push_back(columns_of(columns_[c].heading));
    for (const auto& row : rows_) widths.back() = std::max(widths.back(), columns_of(row[c]));
  }
  HO_CHECK(!shown.empty());
  if (!wide) shrink(widths);
  std::string out;
  const auto add_line = [&](const auto& cell_of) {
    std::string line;
    for (std::size_t i = 0; i < shown.size(); ++i) {
      const std::string cell = cut(cell_of(shown[i]), widths[i]);
      const std::string pad(widths[i] - columns_of(cell), ' ');
      line += columns_[shown[i]].align == kRight ? pad + cell : cell + pad;
      line += std::string(kGap, ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  };
  add_line([&](std::size_t c) { return columns_[c].heading; });
  for (const auto& row : rows_) add_line([&](std::size_t c) { return row[c]; });
  return out;
}

}  // namespace ho::cli
