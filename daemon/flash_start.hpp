#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/base/result.hpp"
#include "daemon/tier/flash/device/uring/uring_device.hpp"
#include "daemon/tier/flash/store/flash_loop.hpp"
#include "proto/config/config.hpp"

namespace ho::daemon {

/// Opens the flash paths of a configuration as one device, which encrypts those with a key. Call it
/// on the thread that will own the device.
/// @return as flash::make_uring_device() and flash::PathKey::read().
[[nodiscard]] Result<std::unique_ptr<flash::Device>> make_flash_device(
    const std::vector<FlashPathSettings>& paths, flash::DeviceMode mode);

/// Opens the flash paths, with the extents that the last process left to KV blocks. A kernel
/// without io_uring leaves the node without flash, and says so; paths that cannot be used are a
/// mistake that somebody has to look at.
/// @return nullptr: no flash, with the reason in `off` where some is configured; what is wrong with
/// a path.
[[nodiscard]] Result<std::unique_ptr<flash::FlashLoop>> start_flash(const DaemonConfig& config,
                                                                    std::string left,
                                                                    std::string& off);

}  // namespace ho::daemon
