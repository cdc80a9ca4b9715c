#pragma once

#include <vector>

#include "common/base/result.hpp"
#include "daemon/tier/flash/device/device.hpp"
#include "daemon/tier/flash/log/layout.hpp"
#include "daemon/tier/flash/log/recover.hpp"

namespace ho::flash {

/// Recovers all paths of a device, in its order, as one set; formats them where all are blank. What
/// was read is safe afterwards, both superblocks of each path say the same, and each extent is
/// whole on all of its paths. Blocks until that is done; no operation may be in flight.
/// @param new_set  random: the set's id where it is formatted.
/// @return kCorrupt, kUnsupported, kConflict (paths that are no set), kInvalidArgument (size,
/// number), kIo, kDeadline: the device does not answer.
[[nodiscard]] Result<std::vector<Volume>> open_path_set(Device& device, const SetId& new_set,
                                                        Findings& findings);

}  // namespace ho::flash
