#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/model/graph.hpp"
#include "common/schedule/schedule.hpp"
#include "tools/analyzer/emit/staging.hpp"
#include "tools/analyzer/problem/decisions.hpp"
#include "tools/analyzer/problem/liveness.hpp"
#include "tools/analyzer/problem/problem.hpp"

namespace ho::analyzer {

/// A plan without names and times.
struct Draft {
  Staging staging;
  std::vector<schedule::CacheOp> cache_ops;  ///< in planned start order; times not filled
  std::vector<schedule::CacheOp> prologue;
  std::vector<schedule::CacheOp> epilogue;
  std::vector<std::uint64_t> access_offset;  ///< parallel to Lifetimes::accesses
  std::vector<std::optional<schedule::HomeSlot>> homes;
  std::vector<std::uint64_t> home_bytes;  ///< per plan tier: highest end offset, staging included
  std::uint64_t flash_bytes = 0;
  std::uint64_t arena_bytes = 0;
  /// Per position: by how much blocks end above what is enough, on the device and in local DDR.
  /// Empty: by nothing.
  std::vector<std::int64_t> over_bytes;
  std::vector<std::int64_t> over_slot_bytes;
  std::uint64_t live_bound_bytes = 0;  ///< largest sum of residences over positions
  std::uint64_t packing_work = 0;      ///< of the device, in units of packing::Budget
};

/// How hard to pack the device.
struct EmitOptions {
  std::uint64_t enough_bytes = UINT64_MAX;  ///< packing of the device stops improving there
  std::uint64_t patience = 1;               ///< so many times the usual work for that packing
};

/// Packs decisions and writes their cache ops with every dependency that the offsets imply: a
/// residence waits for the release of each earlier owner of its bytes. O(n log n) besides
/// packing.
[[nodiscard]] Draft emit(const Graph& graph, const Problem& input, const Decisions& decisions,
                         const EmitOptions& options);

/// Writes the cache ops with their homes, and packs only these: the needs of each tier, at a
/// fraction of the time for packing the device.
[[nodiscard]] Draft emit_homes(const Graph& graph, const Problem& input,
                               const Decisions& decisions);

}  // namespace ho::analyzer
