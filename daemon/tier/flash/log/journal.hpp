#pragma once

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

/// One change that is to be safe. `shard` and `sums` stay until it is handed back.
struct Commit {
  enum class Kind : std::uint8_t { kCreate, kWrite, kFree };
  Kind kind = Kind::kWrite;
  std::uint64_t token = 0;           ///< the caller's
  std::uint64_t promised_bytes = 0;  ///< the caller's: what its frame may take of a log, at most
  Shard* shard = nullptr;
  std::uint32_t block = 0;     ///< kWrite: of the shard
  std::uint32_t physical = 0;  ///< kWrite: where the data was written, complete but not synced
  std::span<const std::uint64_t> sums;
};

/// Makes changes of one path safe, many at a time, and keeps the log short.
///
///   kLog                                              frames: both copies, then a sync
///   kLog -> kSnapshot -> kSnapshotSync -> kSuper -> kSuperSync -> (the other copy) kSuper ...
///        -> kLog                                      a new log in the other area
///   any -> kBroken                                    an I/O error, or no room for a change in
///                                                     a new log: the path takes no change
///
/// One sync makes data and log safe together: until it has ended the path may hold a frame whose
/// data is not there, which recovery finds out by the checksums. A few frames are open at a time,
/// so that a device with much to do is not left idle; a sync covers all that stand, they become
/// safe in their order, and each says how many before it were. What a commit changes in the volume
/// is done when it is safe, so a snapshot of the volume is always a state that the log had.
/// Owner: the store's thread.
class Journal {
 public:
  static constexpr std::uint64_t kOpIdBase = std::uint64_t{1} << 63U;
  /// Operations on the device at a time: both copies of each frame, and a sync beside them.
  [[nodiscard]] static constexpr std::uint32_t device_ops(std::uint32_t frames_open) {
    const auto writes = static_cast<std::uint32_t>(kCopies) * frames_open;
    return frames_open == 1 ? writes : writes + 1;
  }

  struct Options {
    std::size_t commits_max = 0;             ///< that can wait at a time
    std::uint64_t salt = 0;                  ///< random: no other run of the store had it
    std::uint32_t frames_open = 1;           ///< at a time; 1 .. kFramesOpenMax
    std::uint64_t frame_data_bytes_min = 0;  ///< see ExtentStore::Options
  };

  Journal(Device& device, Volume& volume, Options options);
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  /// Takes a change up. At most commits_max may be under way.
  void append(const Commit& commit);
  /// Starts a snapshot at the next chance, so that the log is as short as it can be.
  void request_snapshot() { snapshot_wanted_ = true; }
  /// Writes an empty frame when all others are safe: it carries the wear counters, and says that
  /// they are.
  void request_frame() { frame_wanted_ = true; }
  /// Whether there are writes of which no frame says that they are safe.
  [[nodiscard]] bool open_ended() const { return said_safe_ < last_writes_; }
  /// How many frames with writes have begun: grows by one with each.
  [[nodiscard]] std::uint64_t write_frames() const { return write_frames_; }

  /// Starts what can be started. Call after append(), complete() and request_*().
  void step(std::uint32_t day);
  /// A device operation of ours ended.
  void complete(const Completion& completion);
  [[nodiscard]] static bool owns(OpId op) { return op.value() >= kOpIdBase; }
  [[nodiscard]] static PathIndex path_of(OpId op) {
    return PathIndex(static_cast<std::uint16_t>(op.value() & UINT16_MAX));
  }

  struct Done {
    Commit commit;
    Errc code = Errc::kOk;
  };
  /// Changes that ended since the last call; valid until the next call of anything here.
  [[nodiscard]] const std::vector<Done>& done() const { return done_; }
  void clear_done() { done_.clear(); }

  [[nodiscard]] bool idle() const {
    return state_ == State::kBroken || (state_ == State::kLog && frames_open_ == 0 &&
                                        ready_.empty() && !snapshot_wanted_ && !frame_wanted_);
  }
  [[nodiscard]] bool broken() const { return state_ == State::kBroken; }
  /// Operations of ours on the device: it uses our memory.
  [[nodiscard]] std::uint32_t open_ops() const { return open_ops_; }
  /// Whether a new log is being written, or will be before any other frame.
  [[nodiscard]] bool begins_log() const {
    return snapshot_wanted_ || (state_ != State::kLog && state_ != State::kBroken);
  }
  /// Meaningful where broken().
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
  /// Which operation of ours: a frame's by its place in frames_, or this.
  using Tag = std::uint32_t;
  static constexpr Tag kOther = UINT16_MAX;

  struct Frame {
    explicit Frame(std::size_t bytes) : memory(bytes) {}
    AlignedMemory memory;
    std::vector<Commit> commits;
    std::uint32_t writes_open = 0;  ///< 0: it stands and waits for a sync
    bool syncing = false;           ///< the sync under way covers it
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
  void submit(DeviceOpKind kind, std::uint64_t offset_bytes, std::span<std::byte> memory, Tag tag);
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
  std::uint32_t open_ops_ = 0;  ///< of ours on the device
  bool failed_ = false;         ///< one of them failed
  const char* broken_why_ = "";
  bool snapshot_wanted_ = false;
  bool frame_wanted_ = false;

  std::vector<Commit> ready_;       ///< not in a frame yet
  std::uint64_t ready_blocks_ = 0;  ///< of data that they speak of
  std::vector<Frame> frames_;       ///< a ring of those open, in the order of the log
  std::uint32_t first_frame_ = 0;
  std::uint32_t frames_open_ = 0;
  bool sync_open_ = false;
  std::uint64_t last_writes_ = 0;  ///< frames of this log up to the last one with writes
  std::uint64_t write_frames_ = 0;
  std::uint64_t said_safe_ = 0;  ///< what the last frame says
  std::vector<Done> done_;

  AlignedMemory super_block_;
  std::size_t super_copy_ = 0;
  SnapshotCursor cursor_;
  bool snapshot_more_ = false;
  Superblock next_super_;
};

}  // namespace ho::flash
