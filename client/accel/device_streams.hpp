#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "client/accel/accel.hpp"
#include "client/accel/device_order.hpp"
#include "common/base/result.hpp"

namespace ho::client {

/// The lanes of one accelerator with numbered marks: what has been queued, what has ended, and who
/// waits for whom on the device. A number is queued, then ended; both only grow.
///
///   job's thread:     hold_job(order) -> kernels -> mark_job()
///   transfer thread:  copy(bytes, order) -> number;  poll(): which have ended
///
/// An event stands for a mark until the mark has ended, and only then for a later one. So a caller
/// that waits for a number finds its event as it was recorded, or need not wait.
///
/// Threads: as the functions say. One mutex over the events, since a wait that reads an event while
/// the other thread records it anew would wait for the later mark, which may wait for this one. It
/// is held for calls of the driver that queue something, about a microsecond each.
///
/// Lifecycle: create() -> use -> idle(), everything unpinned -> destructor.
class DeviceStreams {
 public:
  /// Copies queued and not ended, for each direction: what the driver takes without blocking.
  /// Source: CUDA queues 1024 operations for a stream; a copy is up to four (two waits, itself, its
  /// mark).
  static constexpr std::size_t kCopiesMax = 256;
  /// Marks of the job's stream that have not ended.
  static constexpr std::size_t kJobMarksMax = 2048;
  /// Copies are cut to this size, so that the job's own copies pass in between. At 25 GB/s one
  /// takes 0.7 ms.
  static constexpr std::uint64_t kCopyBytesMax = std::uint64_t{16} << 20U;

  /// Marks of the job that fit between those of two positions: for moves outside steps.
  static constexpr std::uint64_t kMarksBetween = std::uint64_t{1} << 20U;
  /// The mark after so many positions of a run, whose beginning has the mark `first`.
  [[nodiscard]] static std::uint64_t position_mark(std::uint64_t first, std::uint64_t positions) {
    return first + positions * kMarksBetween;
  }

  [[nodiscard]] static Result<std::unique_ptr<DeviceStreams>> create(std::unique_ptr<Accel> accel);
  ~DeviceStreams();
  DeviceStreams(const DeviceStreams&) = delete;
  DeviceStreams& operator=(const DeviceStreams&) = delete;

  [[nodiscard]] Accel& accel() { return *accel_; }

  // The job's thread.
  /// Marks what the job has queued so far. Waits while kJobMarksMax marks have not ended: the job
  /// is far ahead of its device. @param number  above all before it. @return the device's failure.
  [[nodiscard]] Result<void> mark_job(std::uint64_t number);
  /// A number above all marks of the job so far.
  [[nodiscard]] std::uint64_t next_job_mark() const;
  /// What the job queues from now on starts after these copies. Does not wait for them.
  [[nodiscard]] Result<void> hold_job(const DeviceOrder& after);
  /// All that was queued so far, in all lanes.
  [[nodiscard]] DeviceOrder everything() const;

  // The transfer thread.
  /// Whether the lane takes another copy. A device that has failed does: the copy says why.
  [[nodiscard]] bool has_room(Lane lane) const;
  /// Queues a copy that starts after `after`; the lane has room. @return its number in its lane;
  /// the device's failure.
  [[nodiscard]] Result<std::uint64_t> copy(const AccelCopy& copy, const DeviceOrder& after);
  /// Looks what has ended. @return whether anything has.
  bool poll();
  /// Grows with every poll() that found something.
  [[nodiscard]] std::uint64_t news() const { return news_; }
  /// Whether all of this has ended, as of the last poll().
  [[nodiscard]] bool ended(const DeviceOrder& order) const;
  /// No copy is queued, or the device has failed and moves nothing any more.
  [[nodiscard]] bool idle() const;
  /// The node's memory is about to be taken back: what of it is pinned is unpinned by the poll()
  /// that finds the device idle. Nothing more may be copied there.
  void lose(std::uint32_t node);

  // Any thread.
  /// Why nothing works any more.
  [[nodiscard]] std::optional<Error> failure() const;
  /// Pins memory of a node. @return as Accel::pin().
  [[nodiscard]] Result<void> pin(std::span<std::byte> memory, std::uint32_t node);
  /// Ends that, unless lose() has. No copy uses it.
  void unpin(std::span<std::byte> memory);

 private:
  struct Mark {
    std::uint64_t number = 0;
    AccelEvent event;
  };
  struct Marks {
    std::deque<Mark> queued;  ///< by number
    std::vector<AccelEvent> free;
    std::uint64_t last = 0;   ///< number ever given
    std::uint64_t ended = 0;  ///< all up to it have ended
    DeviceOrder held;         ///< what the lane already waits for
  };
  struct Pinned {
    std::span<std::byte> memory;
    std::uint32_t node = 0;
  };

  explicit DeviceStreams(std::unique_ptr<Accel> accel) : accel_(std::move(accel)) {}
  [[nodiscard]] Marks& marks(Lane lane) { return marks_[static_cast<std::size_t>(lane)]; }
  [[nodiscard]] const Marks& marks(Lane lane) const {
    return marks_[static_cast<std::size_t>(lane)];
  }
  // With the mutex held.
  [[nodiscard]] Result<void> hold(Lane lane, const DeviceOrder& after);
  [[nodiscard]] Result<void> mark(Lane lane, std::uint64_t number);
  bool look(Lane lane);
  Error keep(const Error& error);
  void unpin_lost();

  std::unique_ptr<Accel> accel_;
  mutable std::mutex mutex_;
  std::array<Marks, kLanes> marks_;
  std::optional<Error> failure_;
  std::uint64_t news_ = 0;  ///< the transfer thread's own
  std::vector<Pinned> pinned_;
  std::vector<std::uint32_t> lost_;  ///< nodes whose memory is still pinned
};

}  // namespace ho::client
