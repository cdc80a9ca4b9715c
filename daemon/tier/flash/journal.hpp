#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "daemon/tier/flash/aligned_memory.hpp"
#include "daemon/tier/flash/device.hpp"
#include "daemon/tier/flash/layout.hpp"
#include "daemon/tier/flash/recover.hpp"
#include "daemon/tier/flash/table.hpp"

namespace ho::flash {

/// One change that is to be safe. `shard` and `sums` stay until it is handed back.
struct Commit {
  enum class Kind : std::uint8_t { kCreate, kWrite, kFree };
  Kind kind = Kind::kWrite;
  std::uint64_t token = 0;  ///< the caller's
  Shard* shard = nullptr;
  std::uint32_t block = 0;     ///< kWrite: of the shard
  std::uint32_t physical = 0;  ///< kWrite: where the data was written, complete but not synced
  std::span<const std::uint64_t> sums;
};

/// Makes changes of one path safe, many at a time, and keeps the log short.
///
///   kIdle -> kFrame (both copies) -> kSync -> kIdle        a frame; the sync covers it and the
///   data
///                                                          of its writes
///   kIdle -> kSnapshot -> kSnapshotSync -> kSuper -> kSuperSync -> (the other copy) kSuper ...
///         -> kIdle                                         a new log in the other area
///   any -> kBroken                                         an I/O error: the path takes no change
///
/// One sync makes data and log safe together: until it has ended the path may hold a frame whose
/// data is not there, which recovery finds out by the checksums. A frame is written only after the
/// one before it is safe, so that can be the last one alone. What a commit changes in the volume is
/// done when it is safe, so a snapshot of the volume is always a state that the log had. Owner: the
/// store's thread.
class Journal {
 public:
  static constexpr std::uint64_t kOpIdBase = std::uint64_t{1} << 63U;
  /// Operations on the device at a time.
  static constexpr std::uint32_t kDeviceOps = 2;

  struct Options {
    std::size_t commits_max = 0;  ///< that can wait at a time
    std::uint64_t salt = 0;       ///< random: no other run of the store had it
  };

  Journal(Device& device, Volume& volume, Options options);
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  /// Takes a change up. At most commits_max may be under way.
  void append(const Commit& commit);
  /// Starts a snapshot at the next chance, so that the log is as short as it can be.
  void request_snapshot() { snapshot_wanted_ = true; }
  /// Writes an empty frame at the next chance: it carries the wear counters, and says by standing
  /// there that all before it is safe.
  void request_frame() { frame_wanted_ = true; }
  /// Whether the log's last frame has no such frame behind it, and writes that it could say so of.
  [[nodiscard]] bool open_ended() const { return open_ended_; }

  /// Starts what can be started. Call after append(), complete() and request_*().
  void step(std::uint32_t day);
  /// A device operation of ours ended.
  void complete(const Completion& completion);
  [[nodiscard]] static bool owns(OpId op) { return op.value() >= kOpIdBase; }
  [[nodiscard]] static PathIndex path_of(OpId op) {
    return PathIndex(static_cast<std::uint16_t>(op.value() - kOpIdBase));
  }

  struct Done {
    Commit commit;
    Errc code = Errc::kOk;
  };
  /// Changes that ended since the last call; valid until the next call of anything here.
  [[nodiscard]] const std::vector<Done>& done() const { return done_; }
  void clear_done() { done_.clear(); }

  [[nodiscard]] bool idle() const {
    return (state_ == State::kIdle || state_ == State::kBroken) && ready_.empty() &&
           !snapshot_wanted_ && !frame_wanted_;
  }
  [[nodiscard]] bool broken() const { return state_ == State::kBroken; }

 private:
  enum class State : std::uint8_t {
    kIdle,
    kFrame,
    kSync,
    kSnapshot,
    kSnapshotSync,
    kSuper,
    kSuperSync,
    kBroken,
  };

  void enter(State from, State to);
  void start_frame();
  [[nodiscard]] std::size_t fill_frame(RecordWriter& out);
  void start_snapshot();
  void next_snapshot_frame();
  void write_super();
  void seal_and_write(std::size_t payload_bytes);
  void submit(DeviceOpKind kind, std::uint64_t offset_bytes, std::span<std::byte> memory);
  void finish_sync();
  void finish_super();
  void apply(const Commit& commit);
  void break_down();

  Device& device_;
  Volume& volume_;
  const Options options_;
  State state_ = State::kIdle;
  std::uint32_t day_ = 0;
  std::uint32_t open_ops_ = 0;  ///< of ours on the device
  bool failed_ = false;         ///< one of them failed
  bool snapshot_wanted_ = false;
  bool frame_wanted_ = false;
  bool open_ended_ = false;

  std::vector<Commit> ready_;   ///< not in a frame yet
  std::vector<Commit> framed_;  ///< in the frame under way
  std::vector<Done> done_;

  AlignedMemory frame_;
  AlignedMemory super_block_;
  std::size_t super_copy_ = 0;
  SnapshotCursor cursor_;
  bool snapshot_more_ = false;
  Superblock next_super_;
};

}  // namespace ho::flash
