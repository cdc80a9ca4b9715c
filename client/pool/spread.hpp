#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "client/pool/flash_homes.hpp"
#include "client/transfer/arena_map.hpp"
#include "common/base/result.hpp"

namespace ho::client {

/// What one node could give.
struct NodeRoom {
  NodeIndex node;
  std::string name;  ///< for people
  std::uint64_t segment_bytes = 0;
  std::uint64_t free_bytes = 0;
};

/// One segment's part of an arena.
struct Stripe {
  NodeIndex node;
  std::uint64_t length_bytes = 0;
};

/// Spreads an arena over nodes: consecutive stripes come from the nodes in turn, a segment at most,
/// so that transfers of neighbouring slots use all links. An arena smaller than a round of segments
/// is cut into equal shares, so that a small job still uses every node. A node without room left
/// is passed over; only whole segments count.
/// @return the stripes in arena order; kExhausted: "needs X, pool has Y on nodes a (free ..), ...".
[[nodiscard]] Result<std::vector<Stripe>> plan_spread(std::uint64_t bytes,
                                                      std::span<const NodeRoom> nodes);

/// The same for an arena of which `parts`, disjoint and by their begin, lie on the nodes that they
/// name; a stripe may then be longer than a segment.
/// @return besides: kUnavailable: a part's node is not among `nodes`; it was lost meanwhile.
[[nodiscard]] Result<std::vector<Stripe>> plan_spread(std::uint64_t bytes,
                                                      std::span<const NodeRoom> nodes,
                                                      std::span<const StagingPart> parts);

/// The sentence for people, also for the case that a grant fails after the plan.
[[nodiscard]] std::string describe_shortage(std::uint64_t bytes, std::span<const NodeRoom> nodes);

}  // namespace ho::client
