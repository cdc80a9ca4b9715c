#pragma once

#include <cstdint>
#include <memory>

#include "client/blocks/blocks.hpp"
#include "client/pool/pool.hpp"
#include "proto/control/block_values.hpp"

namespace ho::client {

/// Opens a tenant's blocks on all nodes of the pool that have a store. Waits for the nodes; one
/// that does not answer is left out with a warning. The pool outlives close().
/// @param block_bytes_max  the largest of the job's blocks; 0: not known
/// @return kUnsupported: no node has a store; kUnavailable, kDeadline: none that has one answers;
/// kInvalidArgument: a name or a secret is too long or short, or blocks are larger than a segment.
[[nodiscard]] Result<std::shared_ptr<Blocks>> open_blocks(Pool& pool, const BlocksTenantSpec& spec,
                                                          std::uint64_t block_bytes_max,
                                                          Duration deadline);

}  // namespace ho::client
