#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.hpp"

namespace ho::layout {

inline constexpr std::size_t kRanksMax = 65536;

/// One dimension of a mesh.
struct Axis {
  std::string name;
  std::uint32_t size = 1;  ///< from 1
};

/// Ranks arranged along named axes. A position is the row-major index of a place in the mesh: the
/// last axis varies fastest. A value; make it with parse_mesh().
struct Mesh {
  std::vector<Axis> axes;
  std::vector<std::uint32_t> ranks;  ///< by position; no rank occurs twice

  [[nodiscard]] std::optional<std::uint32_t> find_axis(std::string_view name) const;
  /// The coordinates of a position, one for each axis.
  [[nodiscard]] std::vector<std::uint32_t> coordinates(std::size_t position) const;
};

/// Reads "4x2:dp,tp": sizes, then names. Ranks are 0, 1, ... by position unless they follow:
/// "4x2:dp,tp@8-15" or "2:dp@3,1".
/// @return kInvalidArgument: the text is not a mesh, a name or a rank occurs twice, or the mesh has
/// more than kRanksMax ranks.
[[nodiscard]] Result<Mesh> parse_mesh(std::string_view text);

}  // namespace ho::layout
