#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

namespace ho::transport {

/// Threads that help their owner with its copies. They take slices of a piece as they come round to
/// it, and so does the owner: one that is late, because it slept or somebody else has its core,
/// costs nothing but its help. They spin for a moment after each piece, since the next is near, and
/// then sleep.
///
/// Owner thread: the transport's. Destroying it ends the threads. They let no signal in but SIGBUS
/// and SIGSEGV.
class CopyTeam {
 public:
  /// A piece has so few slices that more would find none.
  static constexpr std::uint32_t kHelpersMax = 3;
  /// 25 us of a core: many times what handing a slice over costs (well below 1 us between threads
  /// that are awake).
  static constexpr std::size_t kSliceBytes = std::size_t{256} << 10U;

  /// `helpers`: 1 .. kHelpersMax. Where no more threads can be made it works with fewer, and logs
  /// that.
  explicit CopyTeam(std::uint32_t helpers);
  CopyTeam(const CopyTeam&) = delete;
  CopyTeam& operator=(const CopyTeam&) = delete;
  ~CopyTeam();

  struct Piece {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    std::size_t length_bytes = 0;  ///< up to 255 slices
    std::size_t total_bytes = 0;   ///< as copy_piece()
    std::span<std::byte> segment;  ///< as guarded(): one of both sides lies in it
  };
  /// Copies as copy_piece() does; all bytes are there when it returns. Waits for no more than the
  /// slices that helpers have begun, and lets the threads that have their cores go first. Waking a
  /// helper that sleeps is the one other system call: pieces of one transfer follow each other
  /// before it does.
  /// @return false: a part of the segment is gone.
  [[nodiscard]] bool copy(const Piece& piece);

 private:
  [[nodiscard]] bool take_slice();
  void help();

  // turn_ says all that is to be known before a slice is taken: 16 bits that change with each
  // piece | 8 bits slices | 8 bits next slice. The thread that moves the last part on has the
  // slice, and may read piece_ until it counts in done_: the owner changes it only when all are
  // done.
  std::atomic<std::uint32_t> turn_{0};
  Piece piece_;
  std::atomic<std::uint32_t> done_{0};
  std::atomic<bool> gone_{false};
  std::atomic<std::uint32_t> asleep_{0};
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> helpers_;
};

}  // namespace ho::transport
