#include "tools/hyperoffload/words.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iostream>
#include <set>
#include <utility>

#include "common/base/units.hpp"
#include "tools/hyperoffload/command.hpp"

namespace ho::cli {

namespace {

constexpr std::size_t kNamesMax = 100'000;
constexpr std::size_t kNameBytesMax = 128;  ///< compared of each name
constexpr double kPercentMax = 10'000;

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

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

}  // namespace

int complain(std::string_view command, const Error& error) {
  std::cerr << "hyperoffload " << command << ": " << printable(error.context()) << '\n';
  return kExitBadInput;
}

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

std::uint64_t MemorySize::of(std::uint64_t peak_bytes) const {
  if (bytes) return *bytes;
  return static_cast<std::uint64_t>(
      std::floor(static_cast<long double>(peak_bytes) * static_cast<long double>(percent) / 100));
}

std::optional<MemorySize> parse_memory_size(std::string_view text) {
  if (!text.empty() && text.back() == '%') {
    text.remove_suffix(1);
    double percent = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), percent);
    const bool whole = code == std::errc() && end == text.data() + text.size();
    if (!whole || !(percent > 0) || percent > kPercentMax) return std::nullopt;
    return MemorySize{std::nullopt, percent};
  }
  const auto bytes = parse_bytes(text);
  if (!bytes || *bytes == 0) return std::nullopt;
  return MemorySize{*bytes, 0};
}

std::vector<std::string> closest_names(std::string_view wanted,
                                       const std::vector<std::string_view>& names,
                                       std::size_t count) {
  std::set<std::pair<std::size_t, std::string_view>> ranked;
  wanted = wanted.substr(0, kNameBytesMax);
  for (std::size_t i = 0; i < std::min(names.size(), kNamesMax); ++i) {
    const std::string_view name = names[i].substr(0, kNameBytesMax);
    std::size_t distance = edit_distance(wanted, name);
    if (!wanted.empty() && name.find(wanted) != std::string_view::npos) {
      distance = std::min<std::size_t>(distance, 1);
    }
    if (distance > std::max<std::size_t>(3, wanted.size() / 2)) continue;
    ranked.emplace(distance, names[i]);
    if (ranked.size() > count) ranked.erase(std::prev(ranked.end()));
  }
  std::vector<std::string> out;
  for (const auto& [distance, name] : ranked) out.emplace_back(name);
  return out;
}

}  // namespace ho::cli
