#include "client/runtime/homes/home_heap.hpp"

#include <algorithm>
#include <iterator>

#include "common/base/check.hpp"
#include "common/base/units.hpp"

namespace ho::client {

HomeHeap::~HomeHeap() {
  for (auto& chunk : chunks_) pool_.release(std::move(chunk->arena));
}

bool HomeHeap::has_room(std::uint64_t bytes) const {
  return std::any_of(chunks_.begin(), chunks_.end(), [&](const auto& chunk) {
    return std::any_of(chunk->free.begin(), chunk->free.end(),
                       [&](const auto& range) { return range.second >= bytes; });
  });
}

Result<void> HomeHeap::add_chunk(std::uint64_t bytes, Nearness nearness) {
  auto arena = node_ ? pool_.allocate_on(*node_, bytes, streams_)
                     : pool_.allocate(bytes, {nearness, {}, user_, streams_});
  if (!arena) return arena.error();
  auto chunk = std::make_unique<Chunk>();
  chunk->arena = std::move(arena).value();
  chunk->area = {&chunk->arena->map, 0, bytes};
  chunk->free[0] = bytes;
  held_bytes_ += bytes;
  chunks_.push_back(std::move(chunk));
  return {};
}

Result<void> HomeHeap::grow(std::uint64_t bytes, std::uint64_t wanted_bytes) {
  HO_CHECK(wanted_bytes >= bytes);
  const auto lacks_room = [](const Result<void>& added) {
    // Or the nodes were lost just now, and further ones are the candidates.
    return !added &&
           (added.error().code() == Errc::kExhausted || added.error().code() == Errc::kUnavailable);
  };
  auto added = add_chunk(wanted_bytes, nearness_);
  if (lacks_room(added) && wanted_bytes > bytes) added = add_chunk(bytes, nearness_);
  // Nodes that are farther than planned are better than none.
  if (lacks_room(added) && !node_) added = add_chunk(bytes, Nearness::kAny);
  return added;
}

Result<void> HomeHeap::reserve(std::uint64_t bytes) {
  bytes = align_up(bytes, kAlign);
  if (bytes == 0 || has_room(bytes)) return {};
  // The first plan's homes need no room beside them.
  return grow(bytes, chunks_.empty() && !node_ ? bytes : whole_segments(bytes));
}

/// Nodes give whole segments: the rest of one would lie idle.
std::uint64_t HomeHeap::whole_segments(std::uint64_t bytes) const {
  const auto nodes = node_ ? std::vector{*node_} : pool_.candidates(nearness_);
  const std::uint64_t segments = std::max<std::uint64_t>(pool_.segment_bytes_of(nodes), kAlign);
  return (bytes + segments - 1) / segments * segments;
}

Result<HomeRange> HomeHeap::allocate(std::uint64_t bytes) {
  HO_CHECK(bytes > 0);
  bytes = align_up(bytes, kAlign);
  if (!has_room(bytes)) {
    if (auto ok = grow(bytes, whole_segments(bytes)); !ok) return ok.error();
  }
  for (std::uint32_t i = 0; i < chunks_.size(); ++i) {
    Chunk& chunk = *chunks_[i];
    const auto at = std::find_if(chunk.free.begin(), chunk.free.end(),
                                 [&](const auto& range) { return range.second >= bytes; });
    if (at == chunk.free.end()) continue;
    const HomeRange range{i, at->first, bytes, at->first < chunk.fresh_bytes};
    const std::uint64_t left = at->second - bytes;
    chunk.free.erase(at);
    if (left > 0) chunk.free[range.begin_bytes + bytes] = left;
    chunk.fresh_bytes = std::max(chunk.fresh_bytes, range.begin_bytes + bytes);
    return range;
  }
  HO_CHECK(false);  // grow() made room
  return Error(Errc::kExhausted, "");
}

bool HomeHeap::on_drained() const {
  return std::any_of(chunks_.begin(), chunks_.end(), [&](const auto& chunk) {
    return chunk->arena != nullptr && pool_.on_drained(*chunk->arena);
  });
}

Result<bool> HomeHeap::leave_drained(const std::function<void()>& moved) {
  for (auto& chunk : chunks_) {
    if (chunk->arena == nullptr || !pool_.on_drained(*chunk->arena)) continue;
    const bool unused = is_unused(*chunk);
    // A heap of one node stays there.
    if (!unused && node_) continue;
    if (!unused) return pool_.leave_drained(*chunk->arena, streams_, moved);
    release(*chunk);
    return true;
  }
  return false;
}

void HomeHeap::release_unused() {
  for (auto& chunk : chunks_) {
    if (chunk->arena != nullptr && is_unused(*chunk)) release(*chunk);
  }
}

/// Ranges name their chunk by its place, so that the chunk stays.
void HomeHeap::release(Chunk& chunk) {
  held_bytes_ -= chunk.area.length_bytes;
  chunk.free.clear();
  pool_.release(std::move(chunk.arena));
}

void HomeHeap::give_back(const HomeRange& range) {
  HO_CHECK(range.chunk < chunks_.size());
  auto& free = chunks_[range.chunk]->free;
  auto [at, inserted] = free.emplace(range.begin_bytes, range.length_bytes);
  HO_CHECK(inserted);
  const auto next = std::next(at);
  if (next != free.end() && at->first + at->second == next->first) {
    at->second += next->second;
    free.erase(next);
  }
  if (at == free.begin()) return;
  const auto previous = std::prev(at);
  HO_CHECK(previous->first + previous->second <= at->first);
  if (previous->first + previous->second != at->first) return;
  previous->second += at->second;
  free.erase(at);
}

}  // namespace ho::client
