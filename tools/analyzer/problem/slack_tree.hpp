#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/check.hpp"

namespace ho::analyzer {

/// Range add, range minimum and "nearest position below a threshold" over positions.
class SlackTree {
 public:
  explicit SlackTree(const std::vector<std::int64_t>& values);

  void add(std::int64_t first, std::int64_t last, std::int64_t delta);
  [[nodiscard]] std::int64_t min(std::int64_t first, std::int64_t last) const;
  /// The last position in [first, last] whose value is below `threshold`; first - 1 if none.
  [[nodiscard]] std::int64_t last_below(std::int64_t first, std::int64_t last,
                                        std::int64_t threshold) const;

 private:
  struct Node {
    std::int64_t min = 0;
    std::int64_t added = 0;
  };
  [[nodiscard]] std::size_t leaf(std::int64_t position) const {
    HO_CHECK(position >= 0 && position < static_cast<std::int64_t>(size_));
    return leaves_ + static_cast<std::size_t>(position);
  }
  void update(std::size_t node);
  [[nodiscard]] std::int64_t last_below(std::size_t node, std::int64_t low, std::int64_t high,
                                        std::int64_t first, std::int64_t last,
                                        std::int64_t threshold) const;

  std::size_t size_;
  std::size_t leaves_;  ///< a power of two
  std::vector<Node> nodes_;
};

}  // namespace ho::analyzer
