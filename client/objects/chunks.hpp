#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/layout/layout.hpp"
#include "common/layout/reshard.hpp"
#include "proto/control/object_manifest.hpp"

// How a tile lies in the pool. Pure.
namespace ho::client {

/// Pieces of tiles are moved in transfers of at most this size.
inline constexpr std::uint64_t kObjectPieceBytes = std::uint64_t{1} << 20U;

/// A tile cut into chunks: boxes that each lie in the pool in one run and have a checksum of their
/// own, so that a chunk is fetched whole. They follow one another in row-major order of the grid,
/// without gaps. Sides are halved (rounded up) until a chunk has at most
///
///   kRows  1 MiB: the outermost side that is not 1. The stored tile has the order of the tile.
///   kGrid  a 256th of the tile, but 64 KiB to 1 MiB: the side that was halved the least, of these
///          the outermost, among those whose halving leaves runs of 256 bytes in the tile. Readers
///          of parts of rows fetch little more than these of tiles of some MiB; both sides copy
///          once more.
class ChunkGrid {
 public:
  /// @pre the tile's box has 1 to 8 dimensions; element_bytes is 1 to 1024. An empty tile has no
  /// chunks.
  ChunkGrid(const layout::Box& tile, std::uint64_t element_bytes, Chunking chunking);

  [[nodiscard]] std::size_t size() const { return chunks_; }
  /// Whether the stored tile has the bytes in the order of the tile.
  [[nodiscard]] bool in_order() const;
  /// In the tensor's indices.
  [[nodiscard]] layout::Box box(std::size_t chunk) const;
  /// Where the chunk begins in the stored tile. offset_bytes(size()) is the tile's size.
  [[nodiscard]] std::uint64_t offset_bytes(std::size_t chunk) const;
  [[nodiscard]] std::uint64_t bytes(std::size_t chunk) const {
    return offset_bytes(chunk + 1) - offset_bytes(chunk);
  }
  /// The chunks that have elements of `part`, ascending.
  [[nodiscard]] std::vector<std::size_t> touching(const layout::Box& part) const;

 private:
  using Counts = std::array<std::uint64_t, layout::kDimensionsMax>;

  void halve_while_above(std::uint64_t bytes, Chunking chunking);
  [[nodiscard]] Counts at(std::size_t chunk) const;

  layout::Box tile_;
  std::uint64_t element_bytes_;
  Counts sides_{};   ///< a chunk's; the last one along a dimension may be smaller
  Counts counts_{};  ///< chunks along each dimension
  std::size_t chunks_ = 0;
};

/// The copies that bring `part` out of memory that holds the box `from` into memory that holds
/// `to`, both row-major. @pre both contain `part`, which is not empty.
[[nodiscard]] std::vector<layout::Get> copies_of(const layout::Box& from, const layout::Box& to,
                                                 const layout::Box& part,
                                                 std::uint64_t element_bytes);
/// Whether that is one run of bytes.
[[nodiscard]] inline bool is_one_run(std::span<const layout::Get> copies) {
  return copies.size() == 1 && copies.front().count == 1;
}
void copy(std::span<const layout::Get> copies, const std::byte* from, std::byte* to);

}  // namespace ho::client
