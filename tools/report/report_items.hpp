#pragma once

#include <cstdint>
#include <vector>

#include "common/schedule/schedule.hpp"
#include "tools/simulator/simulate.hpp"

// Private to the report: its drawing items, and limits for them.
namespace ho::analyzer::detail {

/// One rectangle of a lane.
struct Item {
  schedule::MeasuredStep::Span span;
  std::uint32_t color = 0;     ///< compute: phase; channel: 0 toward the device, 1 away from it
  std::uint64_t stall_ns = 0;  ///< compute: wait before it
  std::uint32_t count = 1;     ///< number of merged items
  std::uint32_t name = 0;      ///< op or storage index
};

/// Merges adjacent items that are too short to be visible, if there are more than 20,000. Sorted by
/// start.
[[nodiscard]] std::vector<Item> thin_out(std::vector<Item> items);

/// If there are more than 6,000 points, keeps the largest of each bin, so that peaks stay.
[[nodiscard]] std::vector<MemoryPoint> thin_out(const std::vector<MemoryPoint>& points,
                                                std::uint64_t end_ns);

}  // namespace ho::analyzer::detail
