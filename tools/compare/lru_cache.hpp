#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/model/graph.hpp"

namespace ho::gpt {

/// Which storages are in the arena, where, and which go when room is needed: the decisions of the
/// reactive offloader, without memory or transfers. A storage is resident or not; resident it may
/// be pinned (an operand of the current or next op) and dirty (its home copy is not its value).
///
/// Victims are not single storages but windows: the run of neighbouring bytes, free or evictable,
/// that is large enough and whose most recently used storage was used longest ago. Plain
/// LRU order would throw out storages all over the arena before a contiguous hole happens to
/// appear. Pure; one thread.
class LruCache {
 public:
  LruCache(const Graph& graph, std::uint64_t arena_bytes);

  struct Eviction {
    StorageIndex storage;
    std::uint64_t offset_bytes = 0;
    bool dirty = false;  ///< must be written home before its bytes are used again
  };
  struct Placement {
    std::uint64_t offset_bytes = 0;
    std::vector<Eviction> evictions;  ///< already non-resident here
  };
  /// A storage's bytes go from one offset to a lower one; ranges may overlap.
  struct Move {
    StorageIndex storage;
    std::uint64_t from_bytes = 0;
    std::uint64_t to_bytes = 0;
  };

  [[nodiscard]] bool resident(StorageIndex storage) const;
  /// Only of a resident storage.
  [[nodiscard]] std::uint64_t offset_bytes(StorageIndex storage) const;
  /// Highest end offset so far.
  [[nodiscard]] std::uint64_t peak_bytes() const { return peak_bytes_; }

  /// Forgets all pins.
  void unpin_all();
  void pin(StorageIndex storage);
  /// Makes it the most recently used.
  void touch(StorageIndex storage);
  void mark_dirty(StorageIndex storage);
  /// Its home copy is its value again.
  void mark_clean(StorageIndex storage);
  /// The storage to write back while there is nothing else to do: the least recently used dirty one
  /// that may be evicted, if it is among the next `reserve_bytes` that are free or would go. Beyond
  /// these a write is likely to be for nothing: the storage is used again before it goes.
  [[nodiscard]] std::optional<StorageIndex> next_to_clean(std::uint64_t reserve_bytes) const;
  /// Changes whenever a storage's bytes may have been written or moved.
  [[nodiscard]] std::uint64_t version(StorageIndex storage) const;
  /// Its value is dead: frees its bytes, if it has any, without a write.
  void drop(StorageIndex storage);

  /// Makes a storage resident, clean and most recently used, evicting what it must.
  /// @return nothing where no window of unpinned bytes is large enough; nothing has changed then.
  [[nodiscard]] std::optional<Placement> place(StorageIndex storage);

  /// Empties the arena of all that is not pinned.
  [[nodiscard]] std::vector<Eviction> evict_unpinned();
  /// Slides what is resident to the arena's start, in the order the moves must be made.
  [[nodiscard]] std::vector<Move> compact();

 private:
  struct Entry {
    std::uint64_t bytes = 0;  // rounded up to 64
    std::optional<std::uint64_t> offset;
    std::uint64_t last_use = 0;
    bool pinned = false;
    bool dirty = false;
    std::uint64_t version = 0;
  };
  /// A stretch of the arena: one storage's, or free.
  struct Block {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    std::optional<StorageIndex> storage;
  };
  struct Window {
    std::size_t first = 0;  // blocks [first, last)
    std::size_t last = 0;
  };

  [[nodiscard]] Entry& entry(StorageIndex storage);
  [[nodiscard]] std::optional<Window> choose(std::uint64_t bytes) const;
  void free_block(std::size_t block);
  [[nodiscard]] std::size_t block_of(StorageIndex storage) const;
  [[nodiscard]] Eviction evict(StorageIndex storage);

  std::uint64_t arena_bytes_;
  std::uint64_t uses_ = 0;
  std::uint64_t peak_bytes_ = 0;
  std::vector<Entry> entries_;  // per storage
  std::vector<Block> blocks_;   // by offset; no two free neighbours; they cover the arena
};

}  // namespace ho::gpt
