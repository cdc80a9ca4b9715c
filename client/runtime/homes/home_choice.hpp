#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "client/pool/placement/failure_domains.hpp"
#include "client/pool/placement/nearness.hpp"
#include "client/replay/replay.hpp"
#include "common/base/result.hpp"
#include "common/model/address.hpp"

namespace ho::client {

// On which nodes values with two homes lie, and what becomes of a home whose node is lost or
// drained. Decides only: it asks for what it needs to know, so that the simulation in
// tests/sim/pool runs the same rules.

/// The nodes of a value's two homes.
using HomeNodes = std::array<NodeIndex, 2>;

/// A wish for two homes on different nodes.
struct DoubledWish {
  std::uint64_t bytes = 0;
  std::array<Nearness, 2> nearness{};
};

/// The ring of a pool's nodes, the same for all jobs: by a hash of their numbers, so that nodes of
/// one rack are far apart. In a large pool the first homes of a job's values lie on a few nodes
/// from where the job begins, the second ones on few partners of each: few pairs of nodes have
/// values whose only homes they are, and a pair that is lost has rarely any.
inline constexpr std::size_t kHomeNodes = 16;  ///< more where these have too little room
inline constexpr std::size_t kHomePartners = 4;

/// What a choice asks of a pool.
struct HomePool {
  std::function<NodeId(NodeIndex)> id;
  NodeId begin;                          ///< where the job begins in the ring
  std::size_t first_nodes = kHomeNodes;  ///< so many from there on take first homes
  std::function<FailureDomains()> domains;
  std::size_t nodes = 0;  ///< that are known; choose_homes() takes no later one
  std::function<std::vector<NodeIndex>(Nearness)> candidates;  ///< as Pool::candidates()
  std::function<bool(NodeIndex)> is_lost;
  std::function<bool(NodeIndex)> is_drained;
  std::function<std::uint64_t(NodeIndex)> home_bytes;  ///< values with two homes have so many there
};

/// Two nodes for each wish that cannot be lost together: of the job's part of the ring, and of the
/// partners of the first, those with the fewest bytes.
/// @param full  nodes that have no room.
/// @param wanted  gets the bytes that the wishes ask of each node, HomePool::nodes of them.
/// @param align_bytes  of the bytes of a wish.
/// @return kExhausted: there are no such two.
[[nodiscard]] Result<std::vector<HomeNodes>> choose_homes(const HomePool& pool,
                                                          std::span<const DoubledWish> wishes,
                                                          std::span<const NodeIndex> full,
                                                          std::uint64_t align_bytes,
                                                          std::vector<std::uint64_t>& wanted);

/// Chooses two nodes for each wish, and has room made there. Other nodes take the part of one that
/// has too little; if half of the job's part of the ring has, that becomes twice as long.
/// @param pool  asked anew for each try.
/// @param make_room  kExhausted: the node has too little; kUnavailable, kDeadline: it is lost, and
/// no candidate from then on.
/// @return besides: kExhausted: what make_room() last said.
[[nodiscard]] Result<std::vector<HomeNodes>> place_homes(
    const std::function<HomePool()>& pool, std::span<const DoubledWish> wishes,
    std::uint64_t align_bytes,
    const std::function<Result<void>(NodeIndex, std::uint64_t)>& make_room);

/// A home that is to be replaced, of two.
struct LeavingHome {
  std::size_t home = 0;
  bool lost = false;             ///< with its bytes; else its node is drained
  bool both = false;             ///< the other is lost, too: its turn comes next
  std::vector<NodeIndex> nodes;  ///< that may take its place, the best first; one at least
};
/// Which one lies on a lost node, or else on a drained one; nothing: neither, or no node may take
/// its place.
[[nodiscard]] std::optional<LeavingHome> leaving_home(const HomePool& pool, const HomeNodes& nodes);

/// How a value comes to the home that replaces one.
struct HomeRepair {
  enum class How : std::uint8_t {
    kCopy,   ///< from home `from`
    kEmpty,  ///< it is on the device, or there is none: nothing is copied
    kLost,   ///< no home has the value any more: the home is not replaced
  };
  How how = How::kEmpty;
  std::size_t from = 0;
};
[[nodiscard]] HomeRepair plan_home_repair(const ValuePlace& place, const LeavingHome& leaving);
/// Where the value is once the home is replaced.
void home_replaced(ValuePlace& place, const LeavingHome& leaving, const HomeRepair& repair);

}  // namespace ho::client
