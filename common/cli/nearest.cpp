#include "common/cli/nearest.hpp"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

namespace ho::cli {
namespace {

constexpr std::size_t kNamesMax = 100'000;
constexpr std::size_t kNameBytesMax = 128;  ///< compared of each name
constexpr std::size_t kSuggested = 3;

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

}  // namespace

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
  out.reserve(ranked.size());
  for (const auto& [distance, name] : ranked) out.emplace_back(name);
  return out;
}

std::string did_you_mean(std::string_view wanted, const std::vector<std::string_view>& names,
                         const std::string& prefix) {
  std::string words;
  for (const std::string& name : closest_names(wanted, names, kSuggested)) {
    words += (words.empty() ? "; did you mean \"" : ", \"") + prefix + name + "\"";
  }
  return words.empty() ? words : words + "?";
}

}  // namespace ho::cli
