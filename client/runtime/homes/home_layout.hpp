#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "client/pool/placement/nearness.hpp"
#include "common/schedule/schedule.hpp"

namespace ho::client {

/// Nodes that a home slot in DDR, or the staging slots of one on flash, should lie on.
inline Nearness nearness_of(const std::optional<schedule::HomeSlot>& home) {
  const bool far = home && home->tier == schedule::HomeTier::kRemoteDdr;
  return far ? Nearness::kFar : Nearness::kNear;
}

/// Homes that a schedule's plan does not share with storages that live at other times.
struct OwnHomes {
  std::vector<StorageIndex> ddr;    ///< persistent ones, INPUTs and doubled ones, in either tier
  std::vector<StorageIndex> flash;  ///< persistent ones
};

/// Takes the homes of what outlives a step, and of INPUTs, out of a schedule's home arenas and
/// moves what is left together, so that several plans of a job can share one home for each
/// persistent storage and one arena for all the rest.
///
/// In DDR the homes that are taken out are null afterwards, second homes among them, and
/// local_ddr_bytes and remote_ddr_bytes are what homes of other storages and staging slots need. On
/// flash they lie in front, sharing no byte and no block of kFlashAlign with others; all homes stay
/// there.
///
/// Why what is legal stays so. Two ranges that are left share bytes afterwards where they did
/// before, since bytes that one of them had move as a piece; a home that is taken out shares bytes
/// with none. So no byte has an owner that it did not have, and nothing else of the schedule
/// changes. `schedule` is legal. O(n log n).
[[nodiscard]] OwnHomes take_out_own_homes(schedule::Schedule& schedule);

}  // namespace ho::client
