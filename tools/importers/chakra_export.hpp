#pragma once

#include <string>

#include "common/schedule/schedule.hpp"

namespace ho::importers {

/// One step of the steady state as a Chakra trace (.et), for other simulators: a COMP node for each
/// position, in order, each after the one before; a MEM_LOAD node for each Prefetch and StageIn, a
/// MEM_STORE node for each Store and StageOut, a METADATA node for each Detach, which takes no
/// time. A node's data dependencies are the operations that must be complete first: for a cache op
/// its after_position and after_cache_ops, for a position the cache ops that have it as
/// before_position. What reaches over the step's border has no edge, since the other end is in
/// another step; neither prologue nor epilogue is written. Times are the predicted ones.
/// import_chakra() gets the positions back. FORMATS.md describes the attributes.
/// @param plan  a schedule that check_structure() accepts
[[nodiscard]] std::string export_chakra(const schedule::Schedule& plan);

}  // namespace ho::importers
