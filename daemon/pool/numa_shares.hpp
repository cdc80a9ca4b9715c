#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/numa.hpp"
#include "common/base/result.hpp"

namespace ho::daemon {

/// What of a pool is meant to lie on one NUMA node.
struct NumaShare {
  NumaNode node;
  std::uint64_t capacity_bytes = 0;  ///< a multiple of the segments' size
  std::uint64_t granted_bytes = 0;
};

struct NumaRequest {
  std::uint64_t capacity_bytes = 0;  ///< the pool's; a multiple of segment_bytes
  std::uint64_t segment_bytes = 0;
  std::vector<NumaNode> nodes;  ///< to use; empty: those with processors, if they can hold it all
  std::string of = "memory";    ///< what NumaMemory::bytes are, for people
};

/// Divides a pool over NUMA nodes by how much memory they have.
/// @param machine  as read_numa_memory().
/// @return the shares, by node, none empty; none at all where the machine has not two nodes to
/// choose from. kInvalidArgument: a node was asked for that is not there. kExhausted: those that
/// were asked for have not as much memory.
[[nodiscard]] Result<std::vector<NumaShare>> divide_over_numa(const NumaRequest& request,
                                                              std::span<const NumaMemory> machine);

/// The share that the next segment comes from: that of `near` while it has room, else the one with
/// most room, of equals the first. nullptr: there are no shares.
[[nodiscard]] NumaShare* choose_share(std::span<NumaShare> shares, std::optional<NumaNode> near);

}  // namespace ho::daemon
