#include "client/objects/read_plan.hpp"

#include <unordered_map>
#include <utility>

#include "common/model/element_type.hpp"

namespace ho::client {

namespace {

/// Where a chunk goes that is one run of the reader's tile.
std::optional<std::uint64_t> in_place(const ChunkRead& chunk) {
  const bool whole =
      is_one_run(chunk.copies) && chunk.copies.front().run_bytes == chunk.length_bytes;
  if (!whole) return std::nullopt;
  return chunk.copies.front().destination_offset_bytes;
}

/// Puts chunks that follow one another, here and at the reader, into one transfer each.
void join(TileRead& tile) {
  for (std::size_t i = 0; i < tile.chunks.size(); ++i) {
    const ChunkRead& chunk = tile.chunks[i];
    const auto place = in_place(chunk);
    if (!tile.pieces.empty()) {
      PieceRead& last = tile.pieces.back();
      const bool follows = last.begin_bytes + last.length_bytes == chunk.begin_bytes &&
                           last.length_bytes + chunk.length_bytes <= kObjectPieceBytes;
      const bool alike = place.has_value() == last.destination_bytes.has_value() &&
                         (!place || *place == *last.destination_bytes + last.length_bytes);
      if (follows && alike) {
        last.length_bytes += chunk.length_bytes;
        last.end_chunk = i + 1;
        continue;
      }
    }
    tile.pieces.push_back({chunk.begin_bytes, chunk.length_bytes, place, i, i + 1});
  }
}

/// The chunks of a tile that have elements of `part`, which the reader wants.
void add_chunks(TileRead& tile, const layout::Box& held, const layout::Box& part,
                const layout::Box& mine, std::uint64_t element_bytes, Chunking chunking) {
  const ChunkGrid grid(held, element_bytes, chunking);
  tile.tile_bytes = grid.offset_bytes(grid.size());
  tile.tile_chunks = grid.size();
  for (const std::size_t index : grid.touching(part)) {
    const layout::Box box = grid.box(index);
    ChunkRead& chunk = tile.chunks.emplace_back();
    chunk.index = index;
    chunk.begin_bytes = grid.offset_bytes(index);
    chunk.length_bytes = grid.bytes(index);
    chunk.copies = copies_of(box, mine, intersection(box, part), element_bytes);
  }
  join(tile);
}

Result<void> check_wanted(const WantedTensor& wanted, const ObjectTensor& tensor) {
  const bool shape = wanted.shape.empty() || wanted.shape == tensor.shape;
  const bool element = wanted.element_bytes == 0 || wanted.element_bytes == tensor.element_bytes;
  const bool dtype =
      wanted.dtype.empty() || element_type(wanted.dtype) == element_type(tensor.dtype);
  if (shape && element && dtype) return {};
  return Error(Errc::kConflict, "tensor \"" + tensor.name + "\" is of another " +
                                    (!shape     ? "shape"
                                     : !element ? "element size"
                                                : "type") +
                                    " in the object");
}

}  // namespace

Result<ReadPlan> plan_read(const layout::Mesh& mesh, const std::vector<ObjectTensor>& tensors,
                           Chunking chunking, const layout::Mesh& to, std::uint32_t rank,
                           const std::vector<WantedTensor>& wanted) {
  const auto reader = position_of(to, rank);
  if (!reader) return reader.error();
  std::unordered_map<std::string, std::size_t> by_name;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!by_name.emplace(tensors[i].name, i).second) {
      return Error(Errc::kCorrupt, "the object has two tensors \"" + tensors[i].name + "\"");
    }
  }
  ReadPlan out;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const auto named = by_name.find(wanted[i].name);
    if (named == by_name.end()) {
      return Error(Errc::kNotFound, "the object has no tensor \"" + wanted[i].name + "\"");
    }
    const ObjectTensor& tensor = tensors[named->second];
    if (auto ok = check_wanted(wanted[i], tensor); !ok) return ok.error();
    const auto from = placement_of(mesh, tensor);
    if (!from) return from.error();
    ObjectTensor mine = tensor;
    mine.layout = wanted[i].layout;
    const auto into = placement_of(to, mine);
    if (!into) return into.error();
    const auto held = layout::regions(from->mesh, from->layout, tensor.shape);
    if (!held) return held.error().at(tensor.name);
    const auto boxes = layout::regions(into->mesh, into->layout, tensor.shape);
    if (!boxes) return boxes.error().at(tensor.name);
    const layout::Box& own = (*boxes)[*reader];
    const std::uint64_t bytes = own.elements() * tensor.element_bytes;
    if (bytes != wanted[i].memory_bytes) {
      return Error(Errc::kInvalidArgument, "tensor \"" + tensor.name + "\": rank " +
                                               std::to_string(rank) + " has " +
                                               std::to_string(bytes) + " bytes of it, the memory " +
                                               std::to_string(wanted[i].memory_bytes));
    }
    out.needed_bytes += bytes;
    for (std::size_t position = 0; position < held->size(); ++position) {
      const layout::Box part = intersection((*held)[position], own);
      // Equal tiles are stored once; the stored ones have nothing in common.
      if (part.empty() || holder_of(*from, position) != position) continue;
      TileRead& tile = out.tiles.emplace_back();
      tile.position = position;
      tile.tensor = named->second;
      tile.wanted = i;
      add_chunks(tile, (*held)[position], part, own, tensor.element_bytes, chunking);
      for (const ChunkRead& chunk : tile.chunks) out.fetched_bytes += chunk.length_bytes;
    }
  }
  return out;
}

void ReadPlan::leave_out(std::size_t position) {
  std::erase_if(tiles, [&](const TileRead& tile) {
    if (tile.position != position) return false;
    for (const ChunkRead& chunk : tile.chunks) fetched_bytes -= chunk.length_bytes;
    return true;
  });
}

}  // namespace ho::client
