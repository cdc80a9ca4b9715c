#include "common/layout/mesh.hpp"

#include <algorithm>
#include <numeric>

#include "common/layout/words.hpp"
#include "common/text/split_text.hpp"

namespace ho::layout {

namespace {

Error bad_mesh(std::string_view text, const std::string& why) {
  return {Errc::kInvalidArgument, "mesh \"" + std::string(text) + "\": " + why +
                                      R"(; write "4x2:dp,tp" or "4x2:dp,tp@8-15")"};
}

/// "8-15" or "3,1,2".
std::optional<std::vector<std::uint32_t>> parse_ranks(std::string_view text) {
  std::vector<std::uint32_t> ranks;
  for (const std::string_view part : split_text(text, ',')) {
    const std::vector<std::string_view> ends = split_text(part, '-');
    const auto first = parse_number<std::uint32_t>(ends.front());
    const auto last = parse_number<std::uint32_t>(ends.back());
    if (ends.size() > 2 || !first || !last || *last < *first) return std::nullopt;
    if (*last - *first >= kRanksMax - ranks.size()) return std::nullopt;
    for (std::uint64_t rank = *first; rank <= *last; ++rank) {
      ranks.push_back(static_cast<std::uint32_t>(rank));
    }
  }
  return ranks;
}

bool has_twice(std::vector<std::uint32_t> ranks) {
  std::sort(ranks.begin(), ranks.end());
  return std::adjacent_find(ranks.begin(), ranks.end()) != ranks.end();
}

}  // namespace

std::optional<std::uint32_t> Mesh::find_axis(std::string_view name) const {
  for (std::uint32_t axis = 0; axis < axes.size(); ++axis) {
    if (axes[axis].name == name) return axis;
  }
  return std::nullopt;
}

std::vector<std::uint32_t> Mesh::coordinates(std::size_t position) const {
  std::vector<std::uint32_t> found(axes.size());
  for (std::size_t axis = axes.size(); axis-- > 0;) {
    found[axis] = static_cast<std::uint32_t>(position % axes[axis].size);
    position /= axes[axis].size;
  }
  return found;
}

Result<Mesh> parse_mesh(std::string_view text) {
  const std::vector<std::string_view> with_ranks = split_text(text, '@');
  const std::vector<std::string_view> halves = split_text(with_ranks.front(), ':');
  if (halves.size() != 2 || with_ranks.size() > 2)
    return bad_mesh(text, "sizes and names expected");
  const std::vector<std::string_view> sizes = split_text(halves[0], 'x');
  const std::vector<std::string_view> names = split_text(halves[1], ',');
  if (sizes.size() != names.size()) return bad_mesh(text, "as many names as sizes expected");

  Mesh mesh;
  std::size_t positions = 1;
  for (std::size_t axis = 0; axis < sizes.size(); ++axis) {
    const auto size = parse_number<std::uint32_t>(sizes[axis]);
    if (!size || *size == 0) return bad_mesh(text, "a size is a number from 1");
    if (*size > kRanksMax / positions) {
      return bad_mesh(text, "more than " + std::to_string(kRanksMax) + " ranks");
    }
    positions *= *size;
    const std::string_view name = names[axis];
    if (name.empty() || name == "-" || name.find_first_of(" ;+") != std::string_view::npos) {
      return bad_mesh(text, "an axis has no proper name");
    }
    if (mesh.find_axis(name)) return bad_mesh(text, "two axes are \"" + std::string(name) + "\"");
    mesh.axes.push_back({std::string(name), *size});
  }

  if (with_ranks.size() == 1) {
    mesh.ranks.resize(positions);
    std::iota(mesh.ranks.begin(), mesh.ranks.end(), 0U);
    return mesh;
  }
  auto ranks = parse_ranks(with_ranks[1]);
  if (!ranks || ranks->size() != positions) {
    return bad_mesh(text, "a list of " + std::to_string(positions) + " ranks expected");
  }
  if (has_twice(*ranks)) return bad_mesh(text, "a rank occurs twice");
  mesh.ranks = std::move(*ranks);
  return mesh;
}

}  // namespace ho::layout
