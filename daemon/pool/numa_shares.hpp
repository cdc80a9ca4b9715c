#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.hpp"
#include "common/system/numa.hpp"

namespace ho::daemon {

/// The part of a pool that belongs to one NUMA node.
struct NumaShare {
  NumaNode node;
  std::uint64_t capacity_bytes = 0;  ///< a multiple of the segment size
  std::uint64_t granted_bytes = 0;
};

struct NumaRequest {
  std::uint64_t capacity_bytes = 0;  ///< capacity of the pool; a multiple of segment_bytes
  std::uint64_t segment_bytes = 0;
  std::vector<NumaNode> nodes;  ///< nodes to use; empty: those with processors, if they suffice
  std::string of = "memory";    ///< what NumaMemory::bytes counts, for people
};

/// Divides a pool over NUMA nodes in proportion to their memory.
/// @param machine  from read_numa_memory()
/// @return non-empty shares, by node; an empty list if the machine has fewer than two nodes to
/// choose from. kInvalidArgument: a requested node does not exist. kExhausted: the requested nodes
/// have too little memory.
[[nodiscard]] Result<std::vector<NumaShare>> divide_over_numa(const NumaRequest& request,
                                                              std::span<const NumaMemory> machine);

/// Chooses the share for the next segment: that of `near` while it has room, else the share with
/// the most room, the first of equal ones. nullptr: there are no shares.
[[nodiscard]] NumaShare* choose_share(std::span<NumaShare> shares, std::optional<NumaNode> near);

}  // namespace ho::daemon
