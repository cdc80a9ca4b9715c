#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
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

/// An arena lies on as many nodes as it has segments, between these: few, as each that is lost may
/// end the job and each gives a whole segment, but enough that their links carry what one job
/// moves.
inline constexpr std::size_t kArenaNodesMin = 8;
inline constexpr std::size_t kArenaNodesMax = 32;

/// What an arena wants of its nodes.
struct ArenaNeed {
  std::uint64_t bytes = 0;
  std::uint64_t segment_bytes = 0;  ///< the smallest of any node
  std::size_t fixed = 0;            ///< so many nodes hold parts of the arena in any case
};

/// Chooses an arena's nodes: the fixed ones, which are the first of `ring`, and from there on those
/// that have room for an equal share. Asks no more nodes than it takes to find them, however many
/// there are. @return what was asked of all, where they do not suffice.
[[nodiscard]] std::vector<NodeRoom> choose_nodes(
    const ArenaNeed& need, std::span<const NodeIndex> ring,
    const std::function<std::vector<NodeRoom>(const std::vector<NodeIndex>&)>& ask);

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
