#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/model/graph.hpp"
#include "tools/analyzer/problem/liveness.hpp"
#include "tools/analyzer/sweep/choose.hpp"

namespace ho::analyzer {

/// The values in local DDR that spend part of their stay on flash. A value; empty without flash, or
/// if local DDR has room for all.
struct Staging {
  static constexpr std::uint32_t kNone = UINT32_MAX;

  /// One stay of a storage in local DDR, from a Store or StageIn to a StageOut or its last
  /// Prefetch: positions that hold the bytes, both included, in the frame in which its first
  /// transfer lies in step 0.
  struct Slot {
    std::uint32_t storage = 0;
    std::int64_t begin = 0;
    std::int64_t end = 0;
    bool carried = false;  ///< holds, as a step begins, what a Prefetch of that step reads
  };
  std::vector<Slot> slots;
  std::vector<std::uint8_t> on_flash;        ///< per storage: its home is there
  std::vector<std::uint32_t> slot_of_store;  ///< per version; kNone: it is stored in its home slot
  std::vector<std::uint32_t> slot_of_fetch;  ///< per gap; the same
  /// Per version: the StageOut follows this position of the writing step; kNoStore: none.
  std::vector<std::int64_t> stage_out_after;
  /// Per gap: first position that holds the slot of the StageIn before its Prefetch, in the gap's
  /// frame; kNoStore: none, the slot still holds the value.
  std::vector<std::int64_t> stage_in_from;
  /// A slot at position 0 through which first and last steps pass on the way from and to flash.
  std::uint64_t transit_bytes = 0;
  Link flash_read;                         ///< the link from flash
  std::optional<Choice::Failure> failure;  ///< no tier named: local DDR itself

  [[nodiscard]] bool active() const { return !on_flash.empty(); }
};

/// choose() once more, one tier down: local DDR (tier 0 of `input`) is the memory, flash the tier
/// below, Stores and Prefetches of `choice` are the accesses. Slots may fill `options.target_bytes`
/// of local DDR at a position; homes that stay there all the time count too. Persistent storages
/// that never move have their home on flash, at no cost to a step; INPUTs stay in DDR.
[[nodiscard]] Staging stage(const Graph& graph, const ChooseInput& input, const Choice& choice,
                            const PlanTier& flash, const ChooseOptions& options);

}  // namespace ho::analyzer
