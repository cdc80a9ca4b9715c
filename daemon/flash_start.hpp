#pragma once

#include <memory>
#include <string>

#include "common/base/result.hpp"
#include "daemon/tier/flash/store/flash_loop.hpp"
#include "proto/config/config.hpp"

namespace ho::daemon {

/// Opens the flash paths. A kernel without io_uring leaves the node without flash, and says so;
/// paths that cannot be used are a mistake that somebody has to look at.
/// @return nullptr: no flash, with the reason in `off` where some is configured; what is wrong with
/// a path.
[[nodiscard]] Result<std::unique_ptr<flash::FlashLoop>> start_flash(const DaemonConfig& config,
                                                                    std::string& off);

}  // namespace ho::daemon
