#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "client/pool/leavers.hpp"
#include "client/pool/pool.hpp"

namespace ho::client {

/// Pool memory that the job itself reads and writes. Its segments leave drained nodes, one after
/// another, between transfers.
///
/// Threads: any. Destroy it before its pool, once the transfers that use it have ended.
class PlainMemory : public Leaver {
 public:
  /// kStays: the memory lies beside flash, which does not move.
  enum class Drained : std::uint8_t { kLeaves, kStays };
  PlainMemory(Pool& pool, std::unique_ptr<Arena> arena, Drained drained)
      : pool_(pool), arena_(std::move(arena)), drained_(drained) {
    if (drained_ == Drained::kLeaves) pool_.leavers().add(*this);
  }
  ~PlainMemory() override {
    if (drained_ == Drained::kLeaves) pool_.leavers().remove(*this);
    pool_.release(std::move(arena_));
  }
  PlainMemory(const PlainMemory&) = delete;
  PlainMemory& operator=(const PlainMemory&) = delete;

  /// To be held while a transfer begins: no segment moves then. A caller waits at most for the copy
  /// of one, and for nodes that are asked for room. A mutex: any thread begins transfers.
  [[nodiscard]] std::mutex& mutex() { return mutex_; }
  [[nodiscard]] const ArenaMap& map() const { return arena_->map; }

  [[nodiscard]] Result<Left> leave_drained() override {
    const std::lock_guard guard(mutex_);
    if (!pool_.on_drained(*arena_)) return Left::kNothing;
    pool_.engine().wait_unused(&arena_->map);
    const auto left = pool_.leave_drained(*arena_, nullptr, [] {});
    if (!left) return left.error();
    return *left ? Left::kMoved : Left::kNothing;
  }

 private:
  Pool& pool_;
  std::unique_ptr<Arena> arena_;
  const Drained drained_;
  std::mutex mutex_;
};

}  // namespace ho::client
