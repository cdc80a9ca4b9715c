#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/model/graph.hpp"
#include "common/schedule/schedule.hpp"

namespace ho::analyzer {

/// One op's use of a storage.
struct AccessPoint {
  std::uint32_t position = 0;
  schedule::Access access = schedule::Access::kRead;
};

/// Marks a version that the home slot holds without any Store: never written in the step.
inline constexpr std::uint32_t kHomeVersion = UINT32_MAX;

/// The time between two consecutive accesses of a storage: the only time it can be off the device.
/// Positions are global: step k's position p is k * N + p; `from` lies in step 0.
struct Gap {
  std::uint32_t storage = 0;
  std::int64_t from = 0;     ///< last access before; -1: the step's begin (INPUT, supplied at home)
  std::int64_t to = 0;       ///< next access; >= N where the gap wraps into the next step
  std::int64_t written = 0;  ///< the write that made the value; negative: in an earlier step
  std::uint32_t version = kHomeVersion;  ///< gaps of one value share its Store
  bool dead = false;                     ///< `to` overwrites the value: nothing needs to come back
  bool wraps = false;
  bool mandatory = false;  ///< starts at home (INPUT): a Prefetch is needed whatever the budget
  bool movable = false;    ///< may be spent off the device
};

/// Lifetimes by storage: accesses in program order, values (versions) and gaps. A value.
struct Lifetimes {
  std::uint32_t positions = 0;
  std::uint32_t versions = 0;
  std::vector<std::uint64_t> bytes;         ///< per storage, aligned
  std::vector<std::uint8_t> copies;         ///< per storage: homes that a value is stored to
  std::vector<std::uint32_t> access_begin;  ///< per storage, into `accesses`; one more at the end
  std::vector<AccessPoint> accesses;
  std::vector<std::uint32_t> gap_begin;    ///< per storage, into `gaps`; one more at the end
  std::vector<Gap> gaps;                   ///< in order of `from` within a storage
  std::vector<std::uint64_t> working_set;  ///< per position: operands plus what cannot leave
  std::vector<std::uint64_t> live;  ///< per position, everything kept on the device (INPUT from 0)

  [[nodiscard]] std::span<const AccessPoint> accesses_of(std::uint32_t storage) const {
    return std::span(accesses).subspan(access_begin[storage],
                                       access_begin[storage + 1] - access_begin[storage]);
  }
  [[nodiscard]] std::span<const Gap> gaps_of(std::uint32_t storage) const {
    return std::span(gaps).subspan(gap_begin[storage], gap_begin[storage + 1] - gap_begin[storage]);
  }
};

/// One pass over the graph; O(accesses). Bytes are rounded up to `align_bytes`.
[[nodiscard]] Lifetimes lifetimes_of(const Graph& graph, std::uint64_t align_bytes);

/// The first and the last op that name a storage, in program order.
struct OpSpan {
  static constexpr std::uint32_t kNever = UINT32_MAX;
  std::uint32_t first = kNever;  ///< kNever: none does
  std::uint32_t last = 0;
};
/// Per storage.
[[nodiscard]] std::vector<OpSpan> spans_of(const Graph& graph);

/// By how much what peak_unmanaged_bytes() sums up changes before each op, in program order; one
/// more element, where all that lives ends.
[[nodiscard]] std::vector<std::int64_t> unmanaged_changes(const Graph& graph);

/// The largest sum from the beginning to anywhere; 0 where none is positive.
[[nodiscard]] std::uint64_t peak_of(const std::vector<std::int64_t>& changes);

/// Operands of one op as accesses: reads in order, then those only written.
[[nodiscard]] std::vector<schedule::Operand> operands_of(const Op& op);

}  // namespace ho::analyzer
