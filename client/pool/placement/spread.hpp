#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "client/pool/placement/flash_homes.hpp"
#include "client/transfer/arena_map.hpp"
#include "common/base/result.hpp"

namespace ho::client {

/// What one node could give.
struct NodeRoom {
  NodeIndex node;
  std::string name;  ///< for people
  std::uint64_t segment_bytes = 0;
  std::uint64_t free_bytes = 0;
  std::uint64_t capacity_bytes = 0;  ///< free or not; 0: not known
};

/// An arena lies on as many nodes as it has segments, between these: few, as each that is lost may
/// end the job and each gives a whole segment, but enough that their links carry what one job
/// moves.
inline constexpr std::size_t kArenaNodesMin = 8;
inline constexpr std::size_t kArenaNodesMax = 32;

/// One segment's part of an arena.
struct Stripe {
  NodeIndex node;
  std::uint64_t length_bytes = 0;
};

/// Asks nodes for their rooms.
using AskRooms = std::function<std::vector<NodeRoom>(const std::vector<NodeIndex>&)>;

/// Finds an arena's nodes: those that `parts` name, which `ring` begins with, and from there on
/// those that have room, as many as suffice and no fewer than it has segments for. Asks the nodes a
/// few at a time, and no more than it takes, however many there are.
/// @return all rooms, where they do not suffice.
[[nodiscard]] std::vector<NodeRoom> nodes_of_arena(std::uint64_t bytes,
                                                   std::span<const StagingPart> parts,
                                                   std::span<const NodeIndex> ring,
                                                   const AskRooms& ask);

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
