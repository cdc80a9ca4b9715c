#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/layout/layout.hpp"

namespace ho::layout {

/// A box that a reader needs and does not hold, and the holder that sends it.
struct Piece {
  Box box;
  std::size_t demand = 0;  ///< index of the demand that it is a part of
  std::size_t sender = 0;  ///< index in the list of holders
};

/// Cuts a box that is not empty into boxes of about equal size, along outer dimensions where that
/// comes close. @return at most `parts` boxes, fewer if it has not as many elements.
[[nodiscard]] std::vector<Box> split(Box box, std::size_t parts);

/// Divides demands among holders that all hold the same values, and remembers what each sends.
/// A value.
class Senders {
 public:
  explicit Senders(std::size_t holders) : sent_(holders) {}

  /// Gives each demand a holder out of `allowed`, the least loaded first. If a holder would then
  /// send more than `floor` elements and more than its equal part, demands are cut instead.
  /// @param demands  indices in `boxes`. @param allowed  not empty. Appends to `out`.
  void assign(std::span<const std::size_t> demands, std::span<const Box> boxes,
              std::span<const std::size_t> allowed, std::uint64_t floor, std::vector<Piece>& out);

 private:
  [[nodiscard]] bool assign_whole(std::span<const std::size_t> demands, std::span<const Box> boxes,
                                  std::span<const std::size_t> allowed, std::uint64_t limit,
                                  std::vector<Piece>& out);
  void assign_parts(std::span<const std::size_t> demands, std::span<const Box> boxes,
                    std::span<const std::size_t> allowed, std::uint64_t share,
                    std::vector<Piece>& out);

  std::vector<std::uint64_t> sent_;
};

}  // namespace ho::layout
