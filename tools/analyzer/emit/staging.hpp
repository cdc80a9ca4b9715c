#pragma once

#include <cstdint>
#include <vector>

#include "common/model/graph.hpp"
#include "tools/analyzer/problem/decisions.hpp"
#include "tools/analyzer/problem/liveness.hpp"
#include "tools/analyzer/problem/problem.hpp"

namespace ho::analyzer {

/// The values in local DDR that spend part of their stay on flash. A value; empty without flash,
/// or if local DDR has room for all.
struct Staging {
  static constexpr std::uint32_t kNone = UINT32_MAX;

  /// One stay of a storage in local DDR, from a Store or StageIn to a StageOut or its last
  /// Prefetch: moments that hold the bytes, both included, in the frame in which its first
  /// transfer lies in step 0.
  struct Slot {
    std::uint32_t storage = 0;
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::uint32_t opens = kNone;       ///< the version whose Store fills it; kNone: a StageIn does
    std::uint32_t last_fetch = kNone;  ///< the gap of the last Prefetch from it
    std::int64_t last_fetch_step = 0;  ///< ... and its step
    bool carried = false;  ///< holds, as a step begins, what a Prefetch of that step reads
  };
  std::vector<Slot> slots;
  std::vector<std::uint8_t> on_flash;    ///< per storage: its home is there
  std::vector<std::int64_t> store_step;  ///< per version: step of its Store, in its slot's frame
  std::vector<std::uint32_t> slot_of_store;  ///< per version; kNone: it is stored in its home slot
  std::vector<std::uint32_t> slot_of_fetch;  ///< per gap; the same
  /// Per version: when its StageOut begins, in the writing step's frame; kNoStore: none.
  std::vector<std::int64_t> stage_out_from;
  /// Per gap: first moment that holds the slot of the StageIn before its Prefetch, in the gap's
  /// frame; kNoStore: none, the slot still holds the value.
  std::vector<std::int64_t> stage_in_from;
  /// A slot at position 0 through which first and last steps pass on the way from and to flash.
  std::uint64_t transit_bytes = 0;
  Link flash_read;  ///< the link from flash

  [[nodiscard]] bool active() const { return !on_flash.empty(); }
};

/// Cuts the stays in local DDR (tier 0 of `input`) into slots, as a played step decided.
/// Persistent storages that never move have their home on flash, at no cost to a step; INPUTs
/// stay in DDR.
[[nodiscard]] Staging stage(const Graph& graph, const Problem& input, const Decisions& decisions);

}  // namespace ho::analyzer
