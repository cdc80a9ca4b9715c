#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "client/objects/chunks.hpp"
#include "common/base/result.hpp"
#include "common/layout/layout.hpp"
#include "common/layout/mesh.hpp"
#include "common/layout/reshard.hpp"
#include "proto/control/object_manifest.hpp"
#include "proto/control/object_values.hpp"

// What publisher and readers of an object agree in. Pure.
namespace ho::client {

/// Reads a tensor's layout over a mesh, a publisher's or a reader's. @return kInvalidArgument, also
/// for a value that is partial: it is not complete in any rank.
[[nodiscard]] Result<layout::Placement> placement_of(const layout::Mesh& mesh,
                                                     const ObjectTensor& tensor);

/// The position of the mesh that stores the tile which `position` holds: along axes that do not
/// divide the tensor, the first one.
[[nodiscard]] std::size_t holder_of(const layout::Placement& placement, std::size_t position);

/// The position of a rank. @return kInvalidArgument: it is not in the mesh.
[[nodiscard]] Result<std::size_t> position_of(const layout::Mesh& mesh, std::uint32_t rank);

/// Checksum of what all parts of a version have in common.
[[nodiscard]] ObjectChecksum description_of(const std::string& mesh,
                                            const std::vector<ObjectTensor>& tensors,
                                            Chunking chunking);

/// Seed of a chunk's checksum: bytes of another version, part or place never pass for this one's.
[[nodiscard]] std::uint64_t chunk_seed(const ObjectPartId& id, std::size_t tensor,
                                       std::uint64_t chunk);
/// The same for a part's manifest.
[[nodiscard]] std::uint64_t manifest_seed(const ObjectPartId& id);

}  // namespace ho::client
