#pragma once

#include <string>

#include "common/schedule/schedule.hpp"

namespace ho::importers {

/// Writes one step of the steady state as a Chakra trace (.et) for other simulators. A COMP node
/// per position, each after the one before; a MEM_LOAD node per Prefetch and StageIn; a MEM_STORE
/// node per Store and StageOut; a METADATA node per Detach, which takes no time.
///
/// Data dependencies of a node are the operations that must be complete first: for a cache op its
/// after_position and after_cache_ops, for a position the cache ops that have it as
/// before_position. Leaves out dependencies on another step, the prologue and the epilogue. Times
/// are the predicted ones. import_chakra() reads the positions back. FORMATS.md describes the
/// attributes.
/// @param plan  a schedule that check_structure() accepts
[[nodiscard]] std::string export_chakra(const schedule::Schedule& plan);

}  // namespace ho::importers
