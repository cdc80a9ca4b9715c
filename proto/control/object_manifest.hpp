#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.hpp"
#include "proto/control/object_values.hpp"

namespace ho {

/// A tensor of an object, divided over the publishing mesh.
struct ObjectTensor {
  std::string name;
  std::string layout;                ///< as layout::parse_layout() reads it
  std::vector<std::uint64_t> shape;  ///< of the whole tensor
  std::uint32_t element_bytes = 1;
  std::string dtype;  ///< as the program calls it
  bool operator==(const ObjectTensor&) const = default;
};

/// How tiles are cut into chunks. Numbers of the wire.
enum class Chunking : std::uint8_t {
  kRows = 1,  ///< as a tile lies in memory
  kGrid = 2,  ///< along all dimensions
};

/// Where a part has a tensor's tile, and what its chunks' checksums are.
struct ObjectTile {
  std::uint64_t offset_bytes = 0;         ///< in the part
  std::vector<ObjectChecksum> checksums;  ///< by chunk; none: another part stores the tile
};

/// What one part of a version holds.
struct ObjectManifest {
  std::string mesh;  ///< as layout::parse_mesh() reads it
  std::uint32_t part = 0;
  Chunking chunking = Chunking::kRows;
  std::vector<ObjectTensor> tensors;
  std::vector<ObjectTile> tiles;  ///< parallel to tensors
};

/// Its length depends on everything but the checksums' values.
[[nodiscard]] std::string write_manifest(const ObjectManifest& manifest);
/// @return kCorrupt: it is not a manifest; kUnsupported: a later version cut its tiles in another
/// way. Tiles are not checked against anything.
[[nodiscard]] Result<ObjectManifest> read_manifest(std::span<const std::byte> bytes);

}  // namespace ho
