#pragma once

#include <vector>

#include "common/base/result.hpp"
#include "daemon/tier/flash/device/device.hpp"
#include "daemon/tier/flash/log/layout.hpp"
#include "daemon/tier/flash/log/recover.hpp"

namespace ho::flash {

/// Recovers all paths of a device, in its order, as one set; formats them if all are blank.
/// Afterwards everything that was read is durable, both superblocks of each path agree, and each
/// extent is complete on all of its paths. Blocks until then; no operation may be in flight.
/// @param new_set  random: the id of the set if it is formatted
/// @return kCorrupt, kUnsupported, kConflict (the paths are not one set), kInvalidArgument (size,
/// number), kIo, kDeadline: the device does not answer.
[[nodiscard]] Result<std::vector<Volume>> open_path_set(Device& device, const SetId& new_set,
                                                        Findings& findings);

/// Whether open_path_set() would take the paths; writes nothing. @return its errors.
[[nodiscard]] Result<void> check_path_set(Device& device);

}  // namespace ho::flash
