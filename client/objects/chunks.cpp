#include "client/objects/chunks.hpp"

#include <algorithm>
#include <cstring>

#include "common/base/check.hpp"
#include "common/layout/strided.hpp"

namespace ho::client {

namespace {

constexpr std::uint64_t kChunksWanted = 256;
constexpr std::uint64_t kChunkBytesMin = std::uint64_t{64} << 10U;
constexpr std::uint64_t kRunBytesMin = 256;

std::uint64_t ceil_div(std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; }

}  // namespace

ChunkGrid::ChunkGrid(const layout::Box& tile, std::uint64_t element_bytes, Chunking chunking)
    : tile_(tile), element_bytes_(element_bytes) {
  HO_CHECK(tile.dimensions > 0 && element_bytes > 0);
  if (tile.empty()) return;
  for (std::size_t d = 0; d < tile.dimensions; ++d) sides_[d] = tile.sides[d].size();
  std::uint64_t most = kObjectPieceBytes;
  if (chunking == Chunking::kGrid) {
    most = std::clamp(tile.elements() * element_bytes / kChunksWanted, kChunkBytesMin, most);
  }
  halve_while_above(most, chunking);
  chunks_ = 1;
  for (std::size_t d = 0; d < tile.dimensions; ++d) {
    counts_[d] = ceil_div(tile.sides[d].size(), sides_[d]);
    chunks_ *= counts_[d];
  }
}

void ChunkGrid::halve_while_above(std::uint64_t bytes, Chunking chunking) {
  const std::size_t dimensions = tile_.dimensions;
  const auto chunk_bytes = [&] {
    std::uint64_t out = element_bytes_;
    for (std::size_t d = 0; d < dimensions; ++d) out *= sides_[d];
    return out;
  };
  // How many bytes of the tile lie in one run in a chunk once `halved` is.
  const auto run_bytes = [&](std::size_t halved) {
    std::uint64_t run = element_bytes_;
    for (std::size_t d = dimensions; d-- > 0;) {
      const std::uint64_t side = d == halved ? ceil_div(sides_[d], 2) : sides_[d];
      run *= side;
      if (side < tile_.sides[d].size()) break;
    }
    return run;
  };
  Counts halvings{};
  while (chunk_bytes() > bytes) {
    // The outermost side that is not 1 can always be halved: what is inside it is one run, or was
    // cut before and has runs that are long enough.
    std::size_t next = 0;
    while (next < dimensions && sides_[next] == 1) ++next;
    HO_CHECK(next < dimensions);
    for (std::size_t d = next + 1; chunking == Chunking::kGrid && d < dimensions; ++d) {
      if (sides_[d] > 1 && halvings[d] < halvings[next] && run_bytes(d) >= kRunBytesMin) next = d;
    }
    sides_[next] = ceil_div(sides_[next], 2);
    ++halvings[next];
  }
}

bool ChunkGrid::in_order() const {
  return chunks_ == 0 || is_one_run(copies_of(tile_, box(0), box(0), element_bytes_));
}

ChunkGrid::Counts ChunkGrid::at(std::size_t chunk) const {
  Counts out{};
  for (std::size_t d = tile_.dimensions; d-- > 0;) {
    out[d] = chunk % counts_[d];
    chunk /= counts_[d];
  }
  return out;
}

layout::Box ChunkGrid::box(std::size_t chunk) const {
  HO_CHECK(chunk < chunks_);
  const Counts place = at(chunk);
  layout::Box out;
  out.dimensions = tile_.dimensions;
  for (std::size_t d = 0; d < out.dimensions; ++d) {
    const layout::Interval& whole = tile_.sides[d];
    const std::uint64_t begin = whole.begin + place[d] * sides_[d];
    out.sides[d] = {begin, std::min(begin + sides_[d], whole.end)};
  }
  return out;
}

/// Before a chunk are, for each dimension, the chunks with equal places in the dimensions before
/// and a lower one in it.
std::uint64_t ChunkGrid::offset_bytes(std::size_t chunk) const {
  HO_CHECK(chunk <= chunks_);
  if (chunk == chunks_) return tile_.elements() * element_bytes_;
  const Counts place = at(chunk);
  const layout::Box mine = box(chunk);
  std::uint64_t elements = 0;
  std::uint64_t across = 1;  // product of the chunk's own sides so far
  std::uint64_t rest = tile_.elements();
  for (std::size_t d = 0; d < tile_.dimensions; ++d) {
    rest /= tile_.sides[d].size();
    elements += across * (place[d] * sides_[d]) * rest;
    across *= mine.sides[d].size();
  }
  return elements * element_bytes_;
}

std::vector<std::size_t> ChunkGrid::touching(const layout::Box& part) const {
  std::vector<std::size_t> out;
  if (chunks_ == 0 || part.empty()) return out;
  out.push_back(0);
  for (std::size_t d = 0; d < tile_.dimensions; ++d) {
    const std::uint64_t begin = (part.sides[d].begin - tile_.sides[d].begin) / sides_[d];
    const std::uint64_t end = ceil_div(part.sides[d].end - tile_.sides[d].begin, sides_[d]);
    std::vector<std::size_t> next;
    next.reserve(out.size() * (end - begin));
    for (const std::size_t before : out) {
      for (std::uint64_t i = begin; i < end; ++i) next.push_back(before * counts_[d] + i);
    }
    out = std::move(next);
  }
  return out;
}

std::vector<layout::Get> copies_of(const layout::Box& from, const layout::Box& to,
                                   const layout::Box& part, std::uint64_t element_bytes) {
  std::vector<layout::Get> out;
  layout::append_gets(from, to, part, element_bytes, {}, out);
  return out;
}

void copy(std::span<const layout::Get> copies, const std::byte* from, std::byte* to) {
  for (const layout::Get& one : copies) {
    for (std::uint64_t run = 0; run < one.count; ++run) {
      std::memcpy(to + one.destination_offset_bytes + run * one.destination_stride_bytes,
                  from + one.source_offset_bytes + run * one.source_stride_bytes, one.run_bytes);
    }
  }
}

}  // namespace ho::client
