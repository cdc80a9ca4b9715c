#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "client/pool/pool.hpp"
#include "client/replay/replay.hpp"
#include "common/base/result.hpp"

namespace ho::client {

/// Bytes of a HomeHeap.
struct HomeRange {
  std::uint32_t chunk = 0;
  std::uint64_t begin_bytes = 0;  ///< in the chunk
  std::uint64_t length_bytes = 0;
  bool used_before = false;  ///< else its bytes are zero
};

/// Pool memory for homes, taken from the pool in a few large chunks and given out in ranges: first
/// fit; free neighbours merge. Freed ranges stay with the heap until release_unused(). If the nodes
/// that it prefers have no room left, it takes memory of any node.
///
/// Owner thread: the job's. Do not destroy it while a transfer uses its memory.
class HomeHeap {
 public:
  /// Ranges begin at multiples of this.
  static constexpr std::uint64_t kAlign = 64;

  /// @param user  the job's memory that it serves: pool memory is taken near it; may be empty.
  /// @param streams  the accelerator that copies from and to it; null: none.
  HomeHeap(Pool& pool, Nearness nearness, std::span<const std::byte> user, DeviceStreams* streams)
      : pool_(pool), nearness_(nearness), user_(user), streams_(streams) {}
  /// A heap in one node's memory.
  HomeHeap(Pool& pool, NodeIndex node, DeviceStreams* streams)
      : pool_(pool), node_(node), streams_(streams) {}
  ~HomeHeap();
  HomeHeap(const HomeHeap&) = delete;
  HomeHeap& operator=(const HomeHeap&) = delete;

  /// Makes room for allocations of `bytes` in all, aligned, in one piece. @return kExhausted, or
  /// the pool's failure.
  [[nodiscard]] Result<void> reserve(std::uint64_t bytes);
  /// @param bytes  >= 1. @return as reserve().
  [[nodiscard]] Result<HomeRange> allocate(std::uint64_t bytes);
  void give_back(const HomeRange& range);
  /// Whether it can give so much without more memory of the pool.
  [[nodiscard]] bool has_room(std::uint64_t bytes) const;
  /// Memory without a range goes back to the pool.
  void release_unused();

  /// Whether some of its memory lies on a node that is drained.
  [[nodiscard]] bool on_drained() const;
  /// As Pool::leave_drained(), for one segment; memory without a range is given back instead.
  [[nodiscard]] Result<bool> leave_drained(const std::function<void()>& moved);

  /// The chunk that a range lies in, as a place of homes. Lives as the heap does.
  [[nodiscard]] const HomeArea& area(const HomeRange& range) const {
    return chunks_[range.chunk]->area;
  }
  [[nodiscard]] const Arena& arena(const HomeRange& range) const {
    return *chunks_[range.chunk]->arena;
  }
  /// Bytes taken from the pool.
  [[nodiscard]] std::uint64_t held_bytes() const { return held_bytes_; }

 private:
  struct Chunk {
    std::unique_ptr<Arena> arena;  ///< null: given back
    HomeArea area;
    std::map<std::uint64_t, std::uint64_t> free;  ///< length by begin
    std::uint64_t fresh_bytes = 0;                ///< bytes from here on were never given out
  };
  [[nodiscard]] static bool is_unused(const Chunk& chunk) {
    return chunk.free.size() == 1 && chunk.free.begin()->second == chunk.area.length_bytes;
  }
  void release(Chunk& chunk);
  [[nodiscard]] Result<void> add_chunk(std::uint64_t bytes, Nearness nearness);
  [[nodiscard]] Result<void> grow(std::uint64_t bytes, std::uint64_t wanted_bytes);
  [[nodiscard]] std::uint64_t whole_segments(std::uint64_t bytes) const;

  Pool& pool_;
  Nearness nearness_ = Nearness::kAny;
  std::optional<NodeIndex> node_;
  std::span<const std::byte> user_;
  DeviceStreams* streams_ = nullptr;
  std::vector<std::unique_ptr<Chunk>> chunks_;
  std::uint64_t held_bytes_ = 0;
};

}  // namespace ho::client
