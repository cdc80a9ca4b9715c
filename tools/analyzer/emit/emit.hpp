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

/// A plan without names: what differs between the variants of the portfolio.
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

/// What emit() may leave out.
struct EmitOptions {
  std::uint64_t enough_bytes = UINT64_MAX;  ///< packing of the device stops improving there
  std::uint64_t patience = 1;               ///< so many times the usual work for that packing
  bool must_fit = false;                    ///< above it the answer has its packing only
  const Draft* packed = nullptr;  ///< an earlier one of the same choice: the device stays as there
};

/// Packs a choice and writes its cache ops with every dependency that the offsets imply: whoever
/// begins on bytes waits for the release of each previous owner of them. O(n log n) besides
/// packing.
[[nodiscard]] Draft emit(const Graph& graph, const ChooseInput& input, const Choice& choice,
                         const Staging& staging, const EmitOptions& options);

/// The cache ops alone, as if the device had room beside everything: no offsets, hence none of the
/// waits that offsets imply. Costs a fraction of emit(); the step it gives is hardly ever longer.
[[nodiscard]] Draft emit_unpacked(const Graph& graph, const ChooseInput& input,
                                  const Choice& choice);

/// The cache ops with their homes, which alone are packed: what each tier needs for a choice, at a
/// fraction of what the device's packing takes.
[[nodiscard]] Draft emit_homes(const Graph& graph, const ChooseInput& input, const Choice& choice);

}  // namespace ho::analyzer
