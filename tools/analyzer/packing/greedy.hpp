#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tools/analyzer/packing/budget.hpp"
#include "tools/analyzer/packing/instance.hpp"
#include "tools/analyzer/packing/neighbours.hpp"

namespace ho::packing {

/// Offsets of an instance's items, and the highest end.
struct Layout {
  std::vector<std::int64_t> offsets;
  std::int64_t height_bytes = 0;
};

/// Finds the tightest hole between ranges that are added in order of their low ends.
class TightestHole {
 public:
  explicit TightestHole(std::int64_t bytes) : bytes_(bytes) {}

  /// @return false once no hole can be tighter.
  bool add(std::int64_t low, std::int64_t top) {
    const std::int64_t size = low - top_;
    if (size >= bytes_ && size < best_size_) {
      best_ = top_;
      best_size_ = size;
      if (size == bytes_) return false;
    }
    top_ = std::max(top_, top);
    return true;
  }
  [[nodiscard]] std::int64_t offset() const { return best_ < 0 ? top_ : best_; }

 private:
  std::int64_t bytes_;
  std::int64_t top_ = 0;
  std::int64_t best_ = -1;
  std::int64_t best_size_ = INT64_MAX;
};

/// One pass over time with a best-fit free list. Wrapped items are at the bottom, and do not share
/// bytes. O(n log n): the first answer for instances of any size.
[[nodiscard]] Layout place_by_sweep(const Instance& instance);

/// Places the items that `start` leaves at -1, in the given order, each into the tightest hole
/// between its neighbours (the lowest of equal ones). O(pairs of neighbours x log). Empty if the
/// budget ends first.
[[nodiscard]] Layout place_in_order(const Instance& instance, const Neighbours& neighbours,
                                    const std::vector<std::uint32_t>& order,
                                    std::vector<std::int64_t> start, Budget& budget);

/// Orders for place_in_order(), largest first, sorted by how often they give the best result.
/// kLengthClass: by length within a factor of four, then by bytes; for large problems only.
enum class Order : std::uint8_t { kBytes, kFullestSection, kArea, kLength, kLengthClass };
inline constexpr Order kOrders[] = {Order::kBytes, Order::kFullestSection, Order::kArea,
                                    Order::kLength};
[[nodiscard]] std::vector<std::uint32_t> greedy_order(const Instance& instance, Order order);

/// Per item: the largest load among its sections.
[[nodiscard]] std::vector<std::int64_t> fullest_sections(const Instance& instance);
}  // namespace ho::packing
