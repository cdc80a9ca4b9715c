#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.hpp"
#include "common/layout/mesh.hpp"

namespace ho::layout {

inline constexpr std::size_t kDimensionsMax = 8;

/// How a dimension whose size is not a multiple of the axis is divided.
enum class Division : std::uint8_t {
  kCeil,   ///< in parts of the ceiling; the last ones are smaller or empty, as torch.chunk does
  kExact,  ///< refused
};

/// How values that are partial along an axis become whole.
enum class Reduction : std::uint8_t { kSum, kMin, kMax };

/// An axis whose ranks hold terms of the value instead of the value.
struct Partial {
  std::uint32_t axis = 0;  ///< index in the mesh
  Reduction how = Reduction::kSum;
};

/// How a tensor is divided over a mesh. Axes that it does not name hold replicas. A value.
struct Layout {
  /// For each dimension the axes that divide it, from major to minor: the first one divides the
  /// dimension, each further one divides every part again.
  std::vector<std::vector<std::uint32_t>> dimensions;
  std::vector<Partial> partials;
  Division division = Division::kCeil;
};

/// Reads "dp,tp;-": for each dimension the axes from major to minor, "-" for none. "+sum:tp" at the
/// end makes the value partial along tp; also "+min:" and "+max:".
/// @return kInvalidArgument: the text is not a layout, the mesh has no such axis, or an axis is
/// used twice.
[[nodiscard]] Result<Layout> parse_layout(std::string_view text, const Mesh& mesh,
                                          Division division = Division::kCeil);

/// Layouts of tensors with different numbers of dimensions, as text, by that number.
/// @return kInvalidArgument: two have the same number. Does not read them otherwise.
[[nodiscard]] Result<std::map<std::size_t, std::string>> by_dimensions(
    const std::vector<std::string>& layouts);

/// A tensor's size along each dimension, in elements. A tensor with a size of 0 has no bytes.
using Shape = std::vector<std::uint64_t>;

/// Reads "15,5" or "15x5". @return kInvalidArgument: not a shape of 1 to kDimensionsMax dimensions
/// with at most 2^50 elements, where a size of 0 counts as 1.
[[nodiscard]] Result<Shape> parse_shape(std::string_view text);
/// @return kInvalidArgument: not such a shape.
[[nodiscard]] Result<void> check_shape(const Shape& shape);

/// A half-open range of indices along one dimension. Empty if begin == end.
struct Interval {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  [[nodiscard]] std::uint64_t size() const { return end - begin; }
};

/// A part of a tensor: an interval along each dimension.
struct Box {
  std::array<Interval, kDimensionsMax> sides{};
  std::size_t dimensions = 0;

  [[nodiscard]] std::span<const Interval> intervals() const { return {sides.data(), dimensions}; }
  [[nodiscard]] std::uint64_t elements() const;
  [[nodiscard]] bool empty() const { return elements() == 0; }
};

/// What two boxes of one tensor have in common; empty where they are apart.
[[nodiscard]] Box intersection(const Box& a, const Box& b);

/// The box that each position of the mesh holds. Boxes may be empty.
/// @return kInvalidArgument: the layout has another number of dimensions than the shape, or the
/// division is exact and a dimension is not a multiple.
[[nodiscard]] Result<std::vector<Box>> regions(const Mesh& mesh, const Layout& layout,
                                               const Shape& shape);

}  // namespace ho::layout
