#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "client/objects/tiles.hpp"
#include "proto/control/object_manifest.hpp"

namespace ho::client {

/// A tensor that a reader wants, with its layout over the reader's mesh (empty: whole). Another
/// field that is empty or 0 allows any value; `element_bytes` is 1 by default.
struct WantedTensor : ObjectTensor {
  std::uint64_t memory_bytes = 0;  ///< size of the reader's own tile
};

/// A chunk of a tile that the reader needs a part of, or all.
struct ChunkRead {
  std::size_t index = 0;
  std::uint64_t begin_bytes = 0;  ///< in the stored tile
  std::uint64_t length_bytes = 0;
  std::vector<layout::Get> copies;  ///< out of the chunk into the reader's tile
};

/// Chunks that are fetched at once: they follow one another in the stored tile, and have at most
/// kObjectPieceBytes.
struct PieceRead {
  std::uint64_t begin_bytes = 0;  ///< in the stored tile
  std::uint64_t length_bytes = 0;
  /// Where all of it goes in the reader's tile; else copies put its chunks there.
  std::optional<std::uint64_t> destination_bytes;
  std::size_t first_chunk = 0;  ///< index in the tile's chunks
  std::size_t end_chunk = 0;
};

/// What a reader needs of one tile.
struct TileRead {
  std::size_t position = 0;  ///< the part that stores the tile
  std::size_t tensor = 0;    ///< in the object
  std::size_t wanted = 0;    ///< index of the wanted tensor
  std::uint64_t tile_bytes = 0;
  std::size_t tile_chunks = 0;
  std::vector<ChunkRead> chunks;  ///< ascending
  std::vector<PieceRead> pieces;
};

/// Which bytes one rank fetches to have its tiles of an object. Made once, used for every version
/// of the same description. A value.
struct ReadPlan {
  std::vector<TileRead> tiles;
  std::uint64_t needed_bytes = 0;   ///< size of the reader's tiles
  std::uint64_t fetched_bytes = 0;  ///< with the rest of chunks that are needed in part

  /// Fetches nothing of what a position publishes.
  void leave_out(std::size_t position);
};

/// @param mesh, tensors, chunking  the object's. @param to, rank  the reader's.
/// @return kNotFound: the object has no tensor of that name; kConflict: it is of another shape or
/// type; kInvalidArgument: a layout does not fit, or the memory has another size than the tile.
[[nodiscard]] Result<ReadPlan> plan_read(const layout::Mesh& mesh,
                                         const std::vector<ObjectTensor>& tensors,
                                         Chunking chunking, const layout::Mesh& to,
                                         std::uint32_t rank,
                                         const std::vector<WantedTensor>& wanted);

}  // namespace ho::client
