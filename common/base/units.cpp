#include "common/base/units.hpp"

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <utility>

namespace ho {

namespace {

std::string with_unit(double value, const char* unit) {
  std::array<char, 32> text{};
  const int decimals = value >= 100 ? 0 : value >= 10 ? 1 : 2;
  std::snprintf(text.data(), text.size(), "%.*f %s", decimals, value, unit);
  return text.data();
}

/// Powers of 1000.
constexpr std::string_view kPrefixes = "KMGTP";

std::string upper(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return out;
}

struct Number {
  double value = 0;
  std::string_view rest;  ///< behind it
};

/// A finite decimal number at the beginning of `text`.
std::optional<Number> read_number(std::string_view text) {
  Number number;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number.value);
  if (code != std::errc{} || !std::isfinite(number.value)) return std::nullopt;
  number.rest = text.substr(static_cast<std::size_t>(end - text.data()));
  return number;
}

}  // namespace

std::string format_bytes(std::uint64_t bytes) {
  if (bytes < kKiB) return std::to_string(bytes) + " B";
  const auto value = static_cast<double>(bytes);
  if (bytes < kMiB) return with_unit(value / double(kKiB), "KiB");
  if (bytes < kGiB) return with_unit(value / double(kMiB), "MiB");
  if (bytes < 1024 * kGiB) return with_unit(value / double(kGiB), "GiB");
  return with_unit(value / double(1024 * kGiB), "TiB");
}

std::string format_duration_ns(std::uint64_t duration_ns) {
  const auto value = static_cast<double>(duration_ns);
  if (duration_ns < 1000) return std::to_string(duration_ns) + " ns";
  if (duration_ns < 1'000'000) return with_unit(value / 1e3, "us");
  if (duration_ns < 1'000'000'000) return with_unit(value / 1e6, "ms");
  return with_unit(value / 1e9, "s");
}

std::optional<std::uint64_t> parse_bytes(std::string_view text) {
  // std::from_chars for double is exact up to 2^53, so whole numbers use the integer version.
  const char* const end = text.data() + text.size();
  std::uint64_t whole = 0;
  auto [whole_end, whole_error] = std::from_chars(text.data(), end, whole);
  if (whole_error != std::errc{}) return std::nullopt;
  double fraction = 0;
  const char* cursor = whole_end;
  if (cursor != end && *cursor == '.') {
    double value = 0;
    auto [value_end, value_error] =
        std::from_chars(text.data(), end, value, std::chars_format::fixed);
    if (value_error != std::errc{} || value_end == cursor + 1) return std::nullopt;
    fraction = value - static_cast<double>(whole);
    cursor = value_end;
  }
  std::string unit;
  for (; cursor != end; ++cursor) {
    unit.push_back(static_cast<char>(std::toupper(static_cast<unsigned char>(*cursor))));
  }
  std::uint64_t scale = 1;
  if (!unit.empty() && unit != "B") {
    const std::size_t power = std::string_view("KMGTP").find(unit[0]);
    const std::string_view rest = std::string_view(unit).substr(1);
    if (power == std::string_view::npos || !(rest.empty() || rest == "B" || rest == "IB")) {
      return std::nullopt;
    }
    scale = std::uint64_t{1} << (10 * (power + 1));
  }
  if (whole != 0 && scale > UINT64_MAX / whole) return std::nullopt;
  const auto part = static_cast<std::uint64_t>(std::llround(fraction * static_cast<double>(scale)));
  return checked_add(whole * scale, part);
}

std::optional<double> parse_rate(std::string_view text, std::string_view unit) {
  const auto number = read_number(text);
  if (!number) return std::nullopt;
  std::string rest = upper(number->rest);
  const std::string wanted = upper(unit);
  if (rest.size() >= wanted.size() &&
      rest.compare(rest.size() - wanted.size(), rest.size(), wanted) == 0) {
    rest.resize(rest.size() - wanted.size());
  }
  double scale = 1;
  if (!rest.empty()) {
    const std::size_t power = kPrefixes.find(rest[0]);
    const bool binary = rest.size() == 2 && rest[1] == 'I';
    if (power == std::string_view::npos || (rest.size() > 1 && !binary)) return std::nullopt;
    scale = std::pow(binary ? 1024.0 : 1000.0, static_cast<double>(power + 1));
  }
  const double rate = number->value * scale;
  if (!(rate > 0) || !std::isfinite(rate)) return std::nullopt;
  return rate;
}

std::string format_rate(double rate, std::string_view unit) {
  std::size_t power = 0;
  while (rate >= 1000 && power < kPrefixes.size()) {
    rate /= 1000;
    ++power;
  }
  const std::string prefix(power == 0 ? "" : kPrefixes.substr(power - 1, 1));
  return with_unit(rate, ((prefix == "K" ? "k" : prefix) + std::string(unit)).c_str());
}

std::optional<std::uint64_t> parse_duration_ns(std::string_view text) {
  const auto number = read_number(text);
  if (!number || !(number->value >= 0)) return std::nullopt;
  constexpr std::array<std::pair<std::string_view, double>, 6> kUnits{
      {{"", 1e9}, {"s", 1e9}, {"ms", 1e6}, {"us", 1e3}, {"ns", 1}, {"min", 60e9}}};
  for (const auto& [unit, scale] : kUnits) {
    if (number->rest != unit) continue;
    const double ns = number->value * scale;
    if (!(ns < 9e18)) return std::nullopt;
    return static_cast<std::uint64_t>(std::llround(ns));
  }
  return std::nullopt;
}

}  // namespace ho
