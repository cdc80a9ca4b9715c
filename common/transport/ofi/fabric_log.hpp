#pragma once

#include <memory>
#include <string_view>

#include "common/base/result.hpp"
#include "common/base/tally.hpp"

namespace ho::transport {

/// Has accesses that libfabric refuses, and connections that do not speak its protocol, counted:
/// its targets tell their owner in no other way than by lines of its log. From then on libfabric's
/// own log (FI_LOG_LEVEL) is silent in this process. The last tally given counts; none: nobody
/// does. Any thread. @return kUnsupported where this libfabric cannot pass its log on.
[[nodiscard]] Result<void> count_refusals(std::shared_ptr<Tally> tally);

/// Counts what was refused before libfabric saw it with the rest. `cause` is one of few texts of
/// our own, as Tally::note() has it. Any thread.
void note_refusal(const char* cause, std::string_view detail);

}  // namespace ho::transport
