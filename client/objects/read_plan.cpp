#include "client/objects/read_plan.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <unordered_map>
#include <utility>

#include "common/base/check.hpp"

namespace ho::client {

namespace {

using layout::Get;

std::uint64_t end_of(const Get& get) {
  return get.source_offset_bytes + (get.count - 1) * get.source_stride_bytes + get.run_bytes;
}

/// The first run of a get that ends after `begin`.
std::uint64_t first_run(const Get& get, std::uint64_t begin) {
  const std::uint64_t first_end = get.source_offset_bytes + get.run_bytes;
  if (get.count == 1 || first_end > begin) return 0;
  return (begin - first_end) / get.source_stride_bytes + 1;
}

bool touches(const Get& get, const ChunkRead& chunk) {
  const std::uint64_t run = first_run(get, chunk.begin_bytes);
  return run < get.count && get.source_offset_bytes + run * get.source_stride_bytes <
                                chunk.begin_bytes + chunk.length_bytes;
}

/// Where a chunk goes that lies in one run.
std::optional<std::uint64_t> whole(const Get& get, const ChunkRead& chunk) {
  const std::uint64_t run = first_run(get, chunk.begin_bytes);
  const std::uint64_t begin = get.source_offset_bytes + run * get.source_stride_bytes;
  const bool inside =
      begin <= chunk.begin_bytes && chunk.begin_bytes + chunk.length_bytes <= begin + get.run_bytes;
  if (!inside) return std::nullopt;
  return get.destination_offset_bytes + run * get.destination_stride_bytes +
         (chunk.begin_bytes - begin);
}

/// Lists the chunks that the tile's gets have bytes in.
void cut(TileRead& tile) {
  std::map<std::uint64_t, ChunkRead> chunks;
  for (std::size_t i = 0; i < tile.gets.size(); ++i) {
    const Get& get = tile.gets[i];
    HO_CHECK(end_of(get) <= tile.tile_bytes);
    const std::uint64_t last = (end_of(get) - 1) / kObjectChunkBytes;
    for (std::uint64_t at = get.source_offset_bytes / kObjectChunkBytes; at <= last; ++at) {
      ChunkRead chunk;
      chunk.index = at;
      chunk.begin_bytes = at * kObjectChunkBytes;
      chunk.length_bytes = std::min(kObjectChunkBytes, tile.tile_bytes - chunk.begin_bytes);
      if (!touches(get, chunk)) continue;
      const auto [known, fresh] = chunks.try_emplace(at, chunk);
      if (fresh) known->second.first_get = i;
      known->second.end_get = i + 1;
      if (fresh) known->second.destination_bytes = whole(get, chunk);
    }
  }
  for (const auto& [at, chunk] : chunks) tile.chunks.push_back(chunk);
}

Result<void> check_wanted(const WantedTensor& wanted, const ObjectTensor& tensor) {
  const bool shape = wanted.shape.empty() || wanted.shape == tensor.shape;
  const bool element = wanted.element_bytes == 0 || wanted.element_bytes == tensor.element_bytes;
  const bool dtype = wanted.dtype.empty() || wanted.dtype == tensor.dtype;
  if (shape && element && dtype) return {};
  return Error(Errc::kConflict, "tensor \"" + tensor.name + "\" is of another " +
                                    (!shape     ? "shape"
                                     : !element ? "element size"
                                                : "type") +
                                    " in the object");
}

}  // namespace

Result<ReadPlan> plan_read(const layout::Mesh& mesh, const std::vector<ObjectTensor>& tensors,
                           const layout::Mesh& to, std::uint32_t rank,
                           const std::vector<WantedTensor>& wanted) {
  const auto reader = position_of(to, rank);
  if (!reader) return reader.error();
  std::unordered_map<std::string, std::size_t> by_name;
  for (std::size_t i = 0; i < tensors.size(); ++i) by_name.emplace(tensors[i].name, i);
  std::unordered_map<std::uint32_t, std::size_t> positions;
  for (std::size_t i = 0; i < mesh.ranks.size(); ++i) positions.emplace(mesh.ranks[i], i);
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
    const auto plan =
        layout::reshard(*from, *into, tensor.shape, {.element_bytes = tensor.element_bytes});
    if (!plan) return plan.error().at(tensor.name);
    std::map<std::size_t, TileRead> tiles;
    std::uint64_t bytes = 0;
    for (const Get& get : plan->readers[*reader].gets) {
      // Equal tiles are stored once; their gets are the same.
      const std::size_t holder = holder_of(*from, positions.at(get.from));
      TileRead& tile = tiles[holder];
      tile.gets.push_back(get);
      bytes += get.bytes();
      if (tile.tile_bytes != 0) continue;
      tile.position = holder;
      tile.tensor = named->second;
      tile.wanted = i;
      tile.tile_bytes = (*held)[holder].elements() * tensor.element_bytes;
    }
    if (bytes != wanted[i].memory_bytes) {
      return Error(Errc::kInvalidArgument, "tensor \"" + tensor.name + "\": rank " +
                                               std::to_string(rank) + " has " +
                                               std::to_string(bytes) + " bytes of it, the memory " +
                                               std::to_string(wanted[i].memory_bytes));
    }
    out.needed_bytes += bytes;
    for (auto& [holder, tile] : tiles) {
      std::sort(tile.gets.begin(), tile.gets.end(), [](const Get& a, const Get& b) {
        return a.source_offset_bytes < b.source_offset_bytes;
      });
      cut(tile);
      for (const ChunkRead& chunk : tile.chunks) out.fetched_bytes += chunk.length_bytes;
      out.tiles.push_back(std::move(tile));
    }
  }
  return out;
}

void scatter(const TileRead& tile, const ChunkRead& chunk, std::span<const std::byte> bytes,
             std::byte* destination) {
  HO_CHECK(bytes.size() == chunk.length_bytes);
  const std::uint64_t chunk_end = chunk.begin_bytes + chunk.length_bytes;
  for (std::size_t i = chunk.first_get; i < chunk.end_get; ++i) {
    const Get& get = tile.gets[i];
    for (std::uint64_t run = first_run(get, chunk.begin_bytes); run < get.count; ++run) {
      const std::uint64_t begin = get.source_offset_bytes + run * get.source_stride_bytes;
      if (begin >= chunk_end) break;
      const std::uint64_t from = std::max(begin, chunk.begin_bytes);
      const std::uint64_t end = std::min(begin + get.run_bytes, chunk_end);
      const std::uint64_t to = get.destination_offset_bytes + run * get.destination_stride_bytes;
      std::memcpy(destination + to + (from - begin), bytes.data() + (from - chunk.begin_bytes),
                  end - from);
    }
  }
}

}  // namespace ho::client
