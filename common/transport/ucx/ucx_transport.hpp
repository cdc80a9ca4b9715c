#pragma once

#include <memory>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/transport/ucx/loader/ucx_module.hpp"

namespace ho::transport {

/// The two sides of the driver as the module gives them out;
/// common/transport/ucx/loader/ucx_module.hpp states what they promise.
[[nodiscard]] Result<std::unique_ptr<Transport>> open_ucx_transport(const UcxOptions& options,
                                                                    const Clock& clock);
[[nodiscard]] Result<std::unique_ptr<Target>> open_ucx_target(const UcxDevices& devices);

/// Sets where UCX's log lines go; nullptr: nowhere. Any thread.
void set_ucx_log(void (*say)(const char* line));

}  // namespace ho::transport
