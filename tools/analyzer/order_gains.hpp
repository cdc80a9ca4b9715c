#pragma once

#include <cstdint>

#include "common/model/graph.hpp"
#include "common/schedule/schedule.hpp"

namespace ho::analyzer {

/// Largest sum of what lives at a time if nothing ever left the device: as peak_unmanaged_bytes(),
/// less values that are overwritten before they are read again (as before a recomputation).
[[nodiscard]] std::uint64_t live_peak_bytes(const Graph& graph);

/// The least needs of a step in two orders: the gain of refining the order, apart from transfers.
struct OrderGains {
  std::uint64_t program_order_lower_bound_ns = 0;
  std::uint64_t refined_lower_bound_ns = 0;
  std::uint64_t program_order_live_peak_bytes = 0;
  std::uint64_t refined_live_peak_bytes = 0;
};

/// For a schedule of analyze(). If it kept the order both are equal and no bound is computed again;
/// else costs twice lower_bound_ns().
[[nodiscard]] OrderGains order_gains(const schedule::Schedule& schedule);

}  // namespace ho::analyzer
