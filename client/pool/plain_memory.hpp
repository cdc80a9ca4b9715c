#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "client/pool/bell_thread.hpp"
#include "client/pool/pool.hpp"
#include "common/base/clock.hpp"

namespace ho::client {

/// Pool memory that the job itself reads and writes. The parts on drained nodes move to others, one
/// segment after another, on a thread of its own.
///
/// Threads: any. It ends before its pool, and after its allocations.
class PlainMemory {
 public:
  struct Allocation {
    /// Held while a transfer of the arena begins, and while a segment moves: at most for as long as
    /// the copy of one takes. A mutex: any thread begins transfers.
    std::mutex mutex;
    std::unique_ptr<Arena> arena;  ///< null: it has ended
  };

  explicit PlainMemory(Pool& pool) : pool_(pool) {}
  PlainMemory(const PlainMemory&) = delete;
  PlainMemory& operator=(const PlainMemory&) = delete;

  /// kStays: the memory lies beside flash, which does not move.
  enum class Drained : std::uint8_t { kLeaves, kStays };
  [[nodiscard]] std::shared_ptr<Allocation> add(std::unique_ptr<Arena> arena, Drained drained);
  /// Waits for transfers that use it, and for a segment that moves.
  void end(const std::shared_ptr<Allocation>& allocation);

 private:
  [[nodiscard]] Duration leave_drained();
  [[nodiscard]] Result<bool> leave_one(bool& drained);

  Pool& pool_;
  std::mutex mutex_;                                  ///< any thread allocates and frees, rarely
  std::vector<std::shared_ptr<Allocation>> leaving_;  ///< all that may leave
  std::uint64_t segments_ = 0;        ///< moved since the last line about it; the thread's own
  std::uint64_t told_ = 0;            ///< Notice::changes when a line said that some stays
  std::optional<BellThread> thread_;  ///< from the first such allocation on; ends first
};

}  // namespace ho::client
