#pragma once

#include <functional>
#include <string>

#include "common/base/result.hpp"
#include "common/model/hardware.hpp"
#include "tools/models/llama_like.hpp"
#include "tools/report/longest_contexts.hpp"

namespace ho::cli {

/// Finds the longest contexts on one machine: resident, as far as the lower bound allows, and
/// planned, each to one part in 64. Plans keep the ops' order: a pass through layers has no better
/// one. The device has some memory.
/// @param progress  called with half a line for people before and during each try
/// @return the errors of llama_like() for the shortest context, and those of analyze().
[[nodiscard]] Result<analyzer::ContextRow> find_longest(
    const models::LlamaLike& model, const Hardware& hardware, double overhead_max,
    const std::function<void(const std::string&)>& progress);

}  // namespace ho::cli
