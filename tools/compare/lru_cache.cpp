#include "tools/compare/lru_cache.hpp"

#include <algorithm>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/units.hpp"

namespace ho::gpt {

LruCache::LruCache(const Graph& graph, std::uint64_t arena_bytes)
    : arena_bytes_(arena_bytes / 64 * 64) {
  for (const Storage& storage : graph.storages) {
    Entry entry;
    entry.bytes = align_up(storage.bytes, 64);
    entries_.push_back(entry);
  }
  blocks_.push_back(Block{0, arena_bytes_, {}});
}

LruCache::Entry& LruCache::entry(StorageIndex storage) { return entries_.at(storage.value()); }

bool LruCache::resident(StorageIndex storage) const {
  return entries_.at(storage.value()).offset.has_value();
}

std::uint64_t LruCache::offset_bytes(StorageIndex storage) const {
  HO_CHECK(resident(storage));
  return *entries_[storage.value()].offset;
}

void LruCache::unpin_all() {
  for (Entry& entry : entries_) entry.pinned = false;
}

void LruCache::pin(StorageIndex storage) { entry(storage).pinned = true; }

void LruCache::touch(StorageIndex storage) { entry(storage).last_use = ++uses_; }

void LruCache::mark_dirty(StorageIndex storage) {
  HO_CHECK(resident(storage));
  entry(storage).dirty = true;
  entry(storage).version += 1;
}

void LruCache::mark_clean(StorageIndex storage) {
  HO_CHECK(resident(storage));
  entry(storage).dirty = false;
}

std::uint64_t LruCache::version(StorageIndex storage) const {
  return entries_.at(storage.value()).version;
}

std::optional<StorageIndex> LruCache::next_to_clean(std::uint64_t reserve_bytes) const {
  std::uint64_t free_bytes = 0;
  std::vector<StorageIndex> evictable;
  for (const Block& block : blocks_) {
    if (!block.storage) {
      free_bytes += block.bytes;
    } else if (!entries_[block.storage->value()].pinned) {
      evictable.push_back(*block.storage);
    }
  }
  std::sort(evictable.begin(), evictable.end(), [this](StorageIndex a, StorageIndex b) {
    return entries_[a.value()].last_use < entries_[b.value()].last_use;
  });
  std::uint64_t ready_bytes = free_bytes;
  for (const StorageIndex storage : evictable) {
    if (ready_bytes >= reserve_bytes) return std::nullopt;
    if (entries_[storage.value()].dirty) return storage;
    ready_bytes += entries_[storage.value()].bytes;
  }
  return std::nullopt;
}

std::size_t LruCache::block_of(StorageIndex storage) const {
  const std::uint64_t offset = offset_bytes(storage);
  const auto found = std::lower_bound(
      blocks_.begin(), blocks_.end(), offset,
      [](const Block& block, std::uint64_t value) { return block.offset < value; });
  HO_CHECK(found != blocks_.end() && found->storage == storage);
  return static_cast<std::size_t>(found - blocks_.begin());
}

void LruCache::free_block(std::size_t block) {
  blocks_[block].storage.reset();
  const auto merge_with_next = [this](std::size_t at) {
    if (at + 1 >= blocks_.size() || blocks_[at].storage || blocks_[at + 1].storage) return;
    blocks_[at].bytes += blocks_[at + 1].bytes;
    blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  };
  merge_with_next(block);
  if (block > 0) merge_with_next(block - 1);
}

void LruCache::drop(StorageIndex storage) {
  if (!resident(storage)) return;
  free_block(block_of(storage));
  entry(storage).offset.reset();
  entry(storage).dirty = false;
}

LruCache::Eviction LruCache::evict(StorageIndex storage) {
  HO_CHECK(!entry(storage).pinned);
  const Eviction eviction{storage, offset_bytes(storage), entry(storage).dirty};
  drop(storage);
  return eviction;
}

std::optional<LruCache::Window> LruCache::choose(std::uint64_t bytes) const {
  // The tightest free block, where there is one.
  std::optional<Window> best;
  std::uint64_t best_bytes = UINT64_MAX;
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    const Block& block = blocks_[b];
    if (block.storage || block.bytes < bytes || block.bytes >= best_bytes) continue;
    best = Window{b, b + 1};
    best_bytes = block.bytes;
  }
  if (best) return best;
  // Else the window whose latest use is the earliest; among equals the one that writes least.
  std::pair<std::uint64_t, std::uint64_t> best_cost{UINT64_MAX, UINT64_MAX};
  for (std::size_t first = 0; first < blocks_.size(); ++first) {
    std::uint64_t size = 0;
    std::pair<std::uint64_t, std::uint64_t> cost{0, 0};
    for (std::size_t b = first; b < blocks_.size(); ++b) {
      if (blocks_[b].storage) {
        const Entry& entry = entries_[blocks_[b].storage->value()];
        if (entry.pinned) break;
        cost.first = std::max(cost.first, entry.last_use);
        if (entry.dirty) cost.second += entry.bytes;
      }
      if (cost >= best_cost) break;
      size += blocks_[b].bytes;
      if (size < bytes) continue;
      best = Window{first, b + 1};
      best_cost = cost;
      break;
    }
  }
  return best;
}

std::optional<LruCache::Placement> LruCache::place(StorageIndex storage) {
  HO_CHECK(!resident(storage));
  const std::uint64_t bytes = entry(storage).bytes;
  const auto window = choose(bytes);
  if (!window) return std::nullopt;
  Placement placement;
  placement.offset_bytes = blocks_[window->first].offset;
  std::vector<StorageIndex> victims;
  for (std::size_t b = window->first; b < window->last; ++b) {
    if (blocks_[b].storage) victims.push_back(*blocks_[b].storage);
  }
  for (const StorageIndex victim : victims) placement.evictions.push_back(evict(victim));
  // Freed neighbours have merged: one free block now holds the window's start. A free block before
  // the window would have made a window of its own, so the merged one may only begin earlier.
  const auto after = std::upper_bound(
      blocks_.begin(), blocks_.end(), placement.offset_bytes,
      [](std::uint64_t value, const Block& block) { return value < block.offset; });
  const auto at = static_cast<std::size_t>(after - blocks_.begin()) - 1;
  HO_CHECK(!blocks_[at].storage && blocks_[at].bytes >= bytes);
  placement.offset_bytes = blocks_[at].offset;
  const std::uint64_t rest = blocks_[at].bytes - bytes;
  blocks_[at].bytes = bytes;
  blocks_[at].storage = storage;
  if (rest > 0) {
    blocks_.insert(blocks_.begin() + static_cast<std::ptrdiff_t>(at) + 1,
                   Block{placement.offset_bytes + bytes, rest, {}});
  }
  entry(storage).offset = placement.offset_bytes;
  entry(storage).dirty = false;
  entry(storage).version += 1;
  touch(storage);
  peak_bytes_ = std::max(peak_bytes_, placement.offset_bytes + bytes);
  return placement;
}

std::vector<LruCache::Eviction> LruCache::evict_unpinned() {
  std::vector<Eviction> evictions;
  for (std::uint32_t s = 0; s < entries_.size(); ++s) {
    if (entries_[s].offset && !entries_[s].pinned) evictions.push_back(evict(StorageIndex(s)));
  }
  return evictions;
}

std::vector<LruCache::Move> LruCache::compact() {
  std::vector<Move> moves;
  std::vector<Block> packed;
  std::uint64_t end = 0;
  for (const Block& block : blocks_) {
    if (!block.storage) continue;
    if (block.offset != end) moves.push_back(Move{*block.storage, block.offset, end});
    entry(*block.storage).offset = end;
    entry(*block.storage).version += 1;
    packed.push_back(Block{end, block.bytes, block.storage});
    end += block.bytes;
  }
  if (end < arena_bytes_) packed.push_back(Block{end, arena_bytes_ - end, {}});
  blocks_ = std::move(packed);
  return moves;
}

}  // namespace ho::gpt
