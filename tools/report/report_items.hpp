#pragma once

#include <cstdint>
#include <vector>

#include "common/schedule/schedule.hpp"
#include "tools/simulator/simulate.hpp"

// Inside the report only: what it draws, and how much of it.
namespace ho::analyzer::detail {

/// One rectangle of a lane.
struct Item {
  schedule::MeasuredStep::Span span;
  std::uint32_t color = 0;     ///< compute: phase; channel: 0 toward the device, 1 away
  std::uint64_t stall_ns = 0;  ///< compute: waited before it
  std::uint32_t count = 1;     ///< how many are merged here
  std::uint32_t name = 0;      ///< op or storage index
};

/// Merges runs of items that together are too short to be told apart, where there are more than
/// 20,000. Sorted by start.
[[nodiscard]] std::vector<Item> thin_out(std::vector<Item> items);

/// Keeps each bin's largest value, so that peaks stay, where there are more than 6,000 points.
[[nodiscard]] std::vector<MemoryPoint> thin_out(const std::vector<MemoryPoint>& points,
                                                std::uint64_t end_ns);

}  // namespace ho::analyzer::detail
