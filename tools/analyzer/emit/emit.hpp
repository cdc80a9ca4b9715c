#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/model/graph.hpp"
#include "common/schedule/schedule.hpp"
#include "tools/analyzer/problem/liveness.hpp"
#include "tools/analyzer/sweep/choose.hpp"
#include "tools/analyzer/sweep/staging.hpp"

namespace ho::analyzer {

/// A plan without names: the part in which the variants of the portfolio differ.
struct Draft {
  std::vector<schedule::CacheOp> cache_ops;  ///< in planned start order; times not filled
  std::vector<schedule::CacheOp> prologue;
  std::vector<schedule::CacheOp> epilogue;
  std::vector<std::uint64_t> access_offset;  ///< parallel to Lifetimes::accesses
  std::vector<std::optional<schedule::HomeSlot>> homes;
  std::vector<std::uint64_t> home_bytes;  ///< per plan tier: highest end offset, staging included
  std::uint64_t flash_bytes = 0;
  std::uint64_t arena_bytes = 0;
  std::uint64_t live_bound_bytes = 0;  ///< largest sum of residences over positions
};

/// Parts that emit() may leave out.
struct EmitOptions {
  std::uint64_t enough_bytes = UINT64_MAX;  ///< packing of the device stops improving there
  std::uint64_t patience = 1;               ///< so many times the usual work for that packing
  bool must_fit = false;                    ///< above it the answer has its packing only
  const Draft* packed = nullptr;  ///< an earlier one of the same choice: the device stays as there
};

/// Packs a choice and writes its cache ops with every dependency that the offsets imply: a
/// residence waits for the release of each earlier owner of its bytes. O(n log n) besides packing.
[[nodiscard]] Draft emit(const Graph& graph, const ChooseInput& input, const Choice& choice,
                         const Staging& staging, const EmitOptions& options);

/// Writes only the cache ops, as if the device had unlimited room: no offsets, hence no waits that
/// offsets imply. Costs a fraction of emit(); the step is rarely longer.
[[nodiscard]] Draft emit_unpacked(const Graph& graph, const ChooseInput& input,
                                  const Choice& choice);

/// Writes the cache ops with their homes, and packs only these: the needs of each tier for a
/// choice, at a fraction of the time for packing the device.
[[nodiscard]] Draft emit_homes(const Graph& graph, const ChooseInput& input, const Choice& choice);

}  // namespace ho::analyzer
