#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "daemon/tier/flash/device/aligned_memory.hpp"
#include "daemon/tier/flash/device/device.hpp"
#include "daemon/tier/flash/log/layout.hpp"
#include "daemon/tier/flash/log/recover.hpp"
#include "daemon/tier/flash/log/table.hpp"

namespace ho::flash {

/// One change to make durable. `shard` and `sums` must stay valid until it is returned.
struct Commit {
  enum class Kind : std::uint8_t { kCreate, kWrite, kFree, kUsed };
  Kind kind = Kind::kWrite;
  std::uint64_t token = 0;  ///< defined by the caller
  std::uint64_t promised_bytes =
      0;  ///< defined by the caller: limit for the log bytes of its frame
  Shard* shard = nullptr;
  std::uint32_t block = 0;     ///< kWrite: block number within the shard
  std::uint32_t physical = 0;  ///< kWrite: where the data was written; complete but not synced
  std::span<const std::uint64_t> sums;
  std::chrono::sys_seconds used{};  ///< kUsed
};

/// Makes changes of one path durable, many at a time, and keeps the log short.
///
///   kLog                                              frames: both copies, then a sync
///   kLog -> kSnapshot -> kSnapshotSync -> kSuper -> kSuperSync -> (the other copy) kSuper ...
///        -> kLog                                      a new log in the other area
///   any -> kBroken                                    an I/O error, or a new log without room
///                                                     for a change: the path takes no changes
///
/// One sync makes data and log durable together. Until it ends, the path may have a frame without
/// its data; recovery detects this by the checksums. A few frames are open at a time, so that a
/// busy device is never idle. A sync covers all written frames; they become durable in order, and
/// each records how many frames before it were.
///
/// The volume changes only once a commit is durable, so a snapshot of the volume is always a state
/// of the log. Owner: the store's thread.
class Journal {
 public:
  static constexpr std::uint64_t kOpIdBase = std::uint64_t{1} << 63U;
  /// Device operations at a time: both copies of each open frame, and a sync.
  [[nodiscard]] static constexpr std::uint32_t device_ops(std::uint32_t frames_open) {
    const auto writes = static_cast<std::uint32_t>(kCopies) * frames_open;
    return frames_open == 1 ? writes : writes + 1;
  }

  struct Options {
    std::size_t commits_max = 0;             ///< limit for waiting commits
    std::uint64_t salt = 0;                  ///< random and different for each run of the store
    std::uint32_t frames_open = 1;           ///< limit at a time; 1 .. kFramesOpenMax
    std::uint64_t frame_data_bytes_min = 0;  ///< see ExtentStore::Options
  };

  Journal(Device& device, Volume& volume, Options options);
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  /// Accepts a change. At most commits_max may be in progress.
  void append(const Commit& commit);
  /// Starts a snapshot as soon as possible, to make the log as short as possible.
  void request_snapshot() { snapshot_wanted_ = true; }
  /// Writes an empty frame once all others are durable: it has the wear counters, and records that
  /// the others are durable.
  void request_frame() { frame_wanted_ = true; }
  /// True if no frame records yet that the last writes are durable.
  [[nodiscard]] bool open_ended() const { return said_safe_ < last_writes_; }
  /// The number of frames with writes that have begun.
  [[nodiscard]] std::uint64_t write_frames() const { return write_frames_; }

  /// Starts all operations that can start. Call it after append(), complete() and request_*().
  void step(std::uint32_t day);
  /// One of the journal's device operations ended.
  void complete(const Completion& completion);
  [[nodiscard]] static bool owns(OpId op) { return op.value() >= kOpIdBase; }
  [[nodiscard]] static PathIndex path_of(OpId op) {
    return PathIndex(static_cast<std::uint16_t>(op.value() & UINT16_MAX));
  }

  struct Done {
    Commit commit;
    Errc code = Errc::kOk;
  };
  /// Changes that ended since the last call; valid until the next call of any member.
  [[nodiscard]] const std::vector<Done>& done() const { return done_; }
  void clear_done() { done_.clear(); }

  [[nodiscard]] bool idle() const {
    return state_ == State::kBroken || (state_ == State::kLog && frames_open_ == 0 &&
                                        ready_.empty() && !snapshot_wanted_ && !frame_wanted_);
  }
  [[nodiscard]] bool broken() const { return state_ == State::kBroken; }
  /// The journal's operations on the device, which use its memory.
  [[nodiscard]] std::uint32_t open_ops() const { return open_ops_; }
  /// True while a new log is being written, or if one comes before any other frame.
  [[nodiscard]] bool begins_log() const {
    return snapshot_wanted_ || (state_ != State::kLog && state_ != State::kBroken);
  }
  /// Valid if broken().
  [[nodiscard]] const char* broken_why() const { return broken_why_; }

 private:
  enum class State : std::uint8_t {
    kLog,
    kSnapshot,
    kSnapshotSync,
    kSuper,
    kSuperSync,
    kBroken,
  };
  /// Identifies a device operation: a frame by its index in frames_, or one of these.
  using Tag = std::uint32_t;
  static constexpr Tag kOther = UINT16_MAX;

  struct Frame {
    explicit Frame(std::size_t bytes) : memory(bytes) {}
    AlignedMemory memory;
    std::vector<Commit> commits;
    std::uint32_t writes_open = 0;  ///< 0: written; waits for a sync
    bool syncing = false;           ///< the current sync covers it
  };

  void enter(State from, State to);
  [[nodiscard]] bool frame_due() const;
  [[nodiscard]] bool start_frame();
  void start_sync();
  [[nodiscard]] std::uint32_t place(std::uint32_t nth) const {
    return static_cast<std::uint32_t>((first_frame_ + nth) % frames_.size());
  }
  [[nodiscard]] std::size_t fill_frame(RecordWriter& out);
  void start_snapshot();
  void next_snapshot_frame();
  void write_super();
  void seal_and_write(AlignedMemory& memory, std::size_t payload_bytes, Tag tag);
  void submit(DeviceOpKind kind, std::uint64_t offset_bytes, std::span<std::byte> memory, Tag tag,
              Coding coding = Coding::kSecret);
  void complete_in_log(Tag tag);
  void finish_frames();
  void finish_super();
  void apply(const Commit& commit);
  void break_down(const char* why);

  Device& device_;
  Volume& volume_;
  const Options options_;
  State state_ = State::kLog;
  std::uint32_t day_ = 0;
  std::uint32_t open_ops_ = 0;  ///< the journal's operations on the device
  bool failed_ = false;         ///< one of them failed
  const char* broken_why_ = "";
  bool snapshot_wanted_ = false;
  bool frame_wanted_ = false;

  std::vector<Commit> ready_;       ///< not in a frame yet
  std::uint64_t ready_blocks_ = 0;  ///< blocks of their data
  std::vector<Frame> frames_;       ///< a ring of the open frames, in log order
  std::uint32_t first_frame_ = 0;
  std::uint32_t frames_open_ = 0;
  bool sync_open_ = false;
  std::uint64_t last_writes_ = 0;  ///< index of the last frame with writes, plus one
  std::uint64_t write_frames_ = 0;
  std::uint64_t said_safe_ = 0;  ///< number of durable frames that the last frame records
  std::vector<Done> done_;

  AlignedMemory super_block_;
  std::size_t super_copy_ = 0;
  SnapshotCursor cursor_;
  bool snapshot_more_ = false;
  Superblock next_super_;
};

}  // namespace ho::flash
