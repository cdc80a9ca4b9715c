#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/transfer/arena_map.hpp"
#include "common/base/result.hpp"
#include "common/schedule/schedule.hpp"
#include "proto/control/control_values.hpp"

namespace ho::client {

/// What one node's flash could take.
struct FlashRoom {
  NodeIndex node;
  std::string name;  ///< for people
  std::uint64_t free_bytes = 0;
  std::uint64_t capacity_bytes = 0;  ///< free or not
};

/// Bytes that a node's flash can still take today. Extents are spread evenly over its paths, so the
/// path with the least left of its daily write budget is the limit for all.
[[nodiscard]] std::uint64_t usable_flash_bytes(std::span<const FlashPathStatus> paths);

/// Bytes of the local_ddr arena that must lie on one node.
struct StagingPart {
  NodeIndex node;
  std::uint64_t begin_bytes = 0;
  std::uint64_t length_bytes = 0;
};

/// Where a storage's home on flash lies within what its node gives to the job.
struct FlashHome {
  NodeIndex node;
  std::uint64_t offset_bytes = 0;  ///< a multiple of kFlashAlign, except for homes that share bytes
};
inline constexpr std::uint64_t kFlashAlign = 4096;

/// How a schedule's homes on flash and their staging slots are spread over nodes.
struct FlashPlan {
  struct Node {
    NodeIndex node;
    std::uint64_t flash_bytes = 0;  ///< total of the homes placed by this call
  };
  /// A staging slot of a storage that lies elsewhere in the arena than the schedule says.
  struct Moved {
    std::uint32_t storage = 0;
    std::uint64_t from_bytes = 0;
    std::uint64_t to_bytes = 0;
  };
  std::vector<std::optional<FlashHome>> homes;  ///< by storage
  std::vector<Moved> moved;                     ///< by storage, then from_bytes
  std::vector<StagingPart> parts;               ///< disjoint, by begin_bytes
  std::vector<Node> nodes;                      ///< those that are used
  std::uint64_t local_ddr_bytes = 0;            ///< of the arena, with what was added to it

  [[nodiscard]] const Node& of(NodeIndex node) const;
};

/// A node moves bytes between its own flash and its own DDR only, so all slots of one storage
/// belong to one node, as do slots that share bytes. Groups that follow from that are dealt out,
/// the largest first, to the node that has got least. A group of more than a node's even share is
/// taken apart: each further node gets a copy of the staging area for its own storages, behind the
/// schedule's arena. That can only loosen what the schedule orders. `schedule` is legal.
/// @param rooms  one at least.
/// @param placed  by storage: homes that are on flash already, which stay there; may be empty.
/// @param copies_bytes_max  what such copies may add to the arena where fewer nodes could hold it
///        all; what one node's flash cannot hold is copied for whatever it adds.
/// @return kExhausted: "flash: needs X, pool has ...".
[[nodiscard]] Result<FlashPlan> plan_flash_homes(const schedule::Schedule& schedule,
                                                 std::span<const FlashRoom> rooms,
                                                 std::span<const std::optional<FlashHome>> placed,
                                                 std::uint64_t copies_bytes_max);

/// Makes the schedule say where a plan's staging slots lie.
void move_slots(const FlashPlan& plan, schedule::Schedule& schedule);

}  // namespace ho::client
