#pragma once

#include <cstdint>
#include <vector>

#include "tools/analyzer/packing/budget.hpp"
#include "tools/analyzer/packing/instance.hpp"
#include "tools/analyzer/packing/neighbours.hpp"

namespace ho::packing {

/// Offsets of an instance's items and the highest end.
struct Layout {
  std::vector<std::int64_t> offsets;
  std::int64_t height_bytes = 0;
};

/// One pass over time with a best-fit free list. Wrapped items lie at the bottom, each on bytes of
/// its own. O(n log n): the first answer for any size.
[[nodiscard]] Layout place_by_sweep(const Instance& instance);

/// Places what `start` leaves at -1 in the given order, each item into the tightest hole between
/// those it meets (the lowest among equals). O(pairs that meet x log). Empty if the budget ends
/// before.
[[nodiscard]] Layout place_in_order(const Instance& instance, const Neighbours& neighbours,
                                    const std::vector<std::uint32_t>& order,
                                    std::vector<std::int64_t> start, Budget& budget);

/// What place_in_order() may go by, largest first; in the order of how often it does best.
enum class Order : std::uint8_t { kBytes, kFullestSection, kArea, kLength };
inline constexpr Order kOrders[] = {Order::kBytes, Order::kFullestSection, Order::kArea,
                                    Order::kLength};
[[nodiscard]] std::vector<std::uint32_t> greedy_order(const Instance& instance, Order order);

/// Largest sum of bytes among the sections of each item.
[[nodiscard]] std::vector<std::int64_t> fullest_sections(const Instance& instance);
}  // namespace ho::packing
