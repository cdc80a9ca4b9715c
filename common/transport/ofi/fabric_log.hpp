#pragma once

#include <memory>

#include "common/base/result.hpp"
#include "common/base/tally.hpp"

namespace ho::transport {

/// Has accesses that libfabric refuses, and connections that do not speak its protocol, counted:
/// its targets tell their owner in no other way than by lines of its log. From then on libfabric's
/// own log (FI_LOG_LEVEL) is silent in this process. The last tally given counts; none: nobody
/// does. Any thread. @return kUnsupported where this libfabric cannot pass its log on.
[[nodiscard]] Result<void> count_refusals(std::shared_ptr<Tally> tally);

}  // namespace ho::transport
