#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/model/op.hpp"
#include "daemon/tier/flash/device/device.hpp"
#include "daemon/tier/flash/log/journal.hpp"
#include "daemon/tier/flash/log/layout.hpp"
#include "daemon/tier/flash/log/recover.hpp"
#include "daemon/tier/flash/log/table.hpp"
#include "daemon/tier/flash/store/chunk_engine.hpp"
#include "daemon/tier/flash/store/store_path.hpp"
#include "daemon/tier/flash/store/transfer.hpp"

namespace ho::flash {

struct ExtentSpec {
  std::uint64_t length_bytes = 0;
  Policy policy = Policy::kScratch;
  std::uint64_t session = 0;  ///< that a scratch extent ends with
  std::uint64_t access = 0;   ///< the secret by which another session opens a durable one
  std::string owner = {};     ///< see ExtentAbout; cut to kTextBytesMax
  std::string label = {};
  std::uint64_t owner_bytes_max = UINT64_MAX;  ///< quota of the owner, with this extent
};

struct FreeOp {
  OpId op;
  ExtentId extent;
};

struct StoreCompletion {
  Completion done;
  Fault fault;  ///< valid if done.code is not kOk
};

/// The flash of one node: extents striped over paths, every block with a checksum.
///
/// * A read returns the bytes written last, or an error: kCorrupt (wrong checksum), kNotFound (a
///   block that was never written), kIo.
/// * The memory of an operation may disappear (another process truncates its file): kUnavailable.
///   This needs install_memory_guard() on the owner's thread; without it, the process gets SIGBUS.
/// * A write of a durable extent completes when data, checksums and log are durable. After a crash
///   before that, or a failed write, each of its blocks is old or new. Exception: if the device
///   loses completed writes without a reboot of its machine (LAYOUT.md), blocks may read as
///   kCorrupt.
/// * A write of a scratch extent completes when the device has accepted it. After a crash the
///   extent no longer exists; see leave() for an orderly end. After a failed write its blocks may
///   read as kCorrupt.
/// * Operations on common blocks of an extent run in the order of submit(); others in any order.
///
/// The store manages extents and the order of operations. ChunkEngine moves the bytes. Each
/// StorePath keeps its log and its budget.
///
/// Owner: one thread, which also owns the device. submit() and poll() never block and never
/// allocate; open(), create() and close() may. Lifecycle: open -> operations -> close. The
/// destructor without close() is like a crash for the paths: no operation may be in flight; it
/// waits up to ten seconds for those of the logs.
class ExtentStore {
 public:
  ExtentStore(const ExtentStore&) = delete;
  ExtentStore& operator=(const ExtentStore&) = delete;
  ~ExtentStore();

  struct Options {
    std::size_t ops_max = 256;
    std::size_t bounce_buffers = 16;  ///< 1 MiB each, for ends and memory that are not aligned
    std::chrono::sys_seconds time{};  ///< UTC, until set_time()
    /// Limit for extents. Each takes about half a KiB of memory, whatever its size.
    std::size_t extents_max = std::size_t{1} << 20U;
    std::uint64_t salt = 0;  ///< random
    SetId new_set{};         ///< random; for formatting
    /// While other frames are open, this much written data justifies another frame in the log (8
    /// KiB).
    std::uint64_t frame_data_bytes_min = kMiB;
    /// Write budget per path, logs included; absent or 0: no budget. A durable block counts three
    /// times until its write ends, since its frame may be its own: a request that would fit without
    /// this gets kBusy.
    std::vector<std::uint64_t> write_bytes_per_day_max;
    std::string left;  ///< by the last process, as leave() gave it; empty: nothing
  };

  /// Recovers the paths of a device, formats them if all are blank, takes over scratch extents that
  /// the last process left, and begins a new log on each. Extents that do not fit are a finding.
  /// `findings` lists harmless findings. @return as open_path_set(); also kIo if a log cannot be
  /// written.
  [[nodiscard]] static Result<std::unique_ptr<ExtentStore>> open(std::unique_ptr<Device> device,
                                                                 Options options,
                                                                 Findings& findings);

  /// Reserves space, all or nothing. Operations may start at once.
  /// @return kInvalidArgument; kExhausted: no space, no room in the log, extents_max, the quota of
  /// the owner, or the write budget of a path for this day; kBusy: too many are being made, or
  /// writes in flight may need the budget; kIo: a path is broken.
  [[nodiscard]] Result<ExtentId> create(const ExtentSpec& spec);

  /// Each accepted operation has one completion. Until then the store uses its memory, and bytes to
  /// write must not change.
  /// @return kNotFound, kOutOfRange, kInvalidArgument (empty), kBusy (ops_max, or writes in flight
  /// may need the write budget), kExhausted (the write budget of a path for this day); nothing
  /// started then.
  [[nodiscard]] Result<void> submit(const TransferOp& op);
  /// Completes when no crash can bring the extent back and its space is free.
  [[nodiscard]] Result<void> submit(const FreeOp& op);

  /// Ends every scratch extent of a session: operations that have not begun get kCanceled.
  void end_session(std::uint64_t session);

  /// Whether this is the secret of a durable extent.
  [[nodiscard]] bool opens(ExtentId extent, std::uint64_t access) const;
  /// Notes in the logs that a durable extent is in use now. Not safe yet when it returns. Extents
  /// that are unknown or being freed are ignored, and so is all beyond ops_max notes at a time.
  void note_used(ExtentId extent);

  std::size_t poll(std::span<StoreCompletion> out);
  void wait(Duration time_max) { device_->wait(time_max); }

  /// Makes the counters durable. All operations must have completed.
  [[nodiscard]] Result<void> close();

  /// Leaves scratch extents to the next process; those that do not exist are ignored. After
  /// close(), and only the destructor may follow. @return bytes for its open(): 0.2 to 0.4 % of
  /// the extents'.
  [[nodiscard]] std::string leave(const std::set<ExtentId>& extents);
  /// Gives an extent that was left and belongs to nobody to a session.
  void claim(ExtentId extent, std::uint64_t session);

  /// Call it often; it only looks at each path. Writes the wear counters of a path once they are
  /// StorePath::kSaveWearAfter old: a crash loses no more than that.
  ///
  /// If a log had no durable write for kSealAfter, makes it record that all its contents are
  /// durable, whatever else goes on. Without this record, recovery after a power cut mistakes a
  /// damaged block of the last writes for one that never arrived.
  void tend_logs(TimePoint now);
  static constexpr auto kSealAfter = StorePath::kSealAfter;
  /// Does so at once for all paths.
  void seal();
  /// Whether all logs have this record.
  [[nodiscard]] bool sealed() const;

  /// The state of making a durable extent: before kMade a crash loses it.
  enum class Making : std::uint8_t { kUnderWay, kMade, kFailed };
  [[nodiscard]] Making making(ExtentId extent) const;

  void set_time(std::chrono::sys_seconds now);
  [[nodiscard]] Device& device() { return *device_; }
  /// The device depth that this many paths need: the share of the logs, and work beside it.
  [[nodiscard]] static constexpr std::uint32_t depth_ops(std::size_t path_count) {
    return std::max(64U, 16 * static_cast<std::uint32_t>(path_count));
  }
  [[nodiscard]] const std::string& notice() const { return device_->caps().notice; }
  [[nodiscard]] std::size_t extent_count() const { return extents_.size(); }
  /// Bytes of the extents of each owner.
  [[nodiscard]] const std::map<std::string, std::uint64_t>& owned_bytes() const {
    return owned_bytes_;
  }
  [[nodiscard]] std::vector<PathStatus> paths() const;
  /// Lists extents by id, without those being made; at most `count_max` after `after`. Cost: the
  /// size of the result.
  [[nodiscard]] std::vector<ExtentInfo> extents(ExtentId after = ExtentId(0),
                                                std::size_t count_max = SIZE_MAX) const;
  [[nodiscard]] std::optional<ExtentInfo> find(ExtentId extent) const;
  /// "path /x: extent 7, block 12 (byte 49152 of the path)"
  [[nodiscard]] std::string describe(const Fault& fault) const;
  /// Checks that every block is free or has one owner. For tests; cost: all blocks.
  void check_space() const;

 private:
  using Slot = std::uint32_t;

  /// An extent and its operations in progress.
  ///
  ///   kCreating -> kLive -> kFreeing -> (gone)    durable: both ends are logged
  ///   kCreating, kFreeing -> kLost                the log broke: the state is unknown
  ///   kLive -> kDoomed -> (gone)                  scratch, when its session ends
  struct Entry {
    enum class State : std::uint8_t { kCreating, kLive, kFreeing, kDoomed, kLost };
    Extent extent;
    State state = State::kLive;
    std::uint32_t commits_open = 0;  ///< commits of its creation
    std::uint32_t notes_open = 0;    ///< commits of its use
    std::vector<Slot> ops;           ///< in the order of submit()
    bool ending = false;             ///< its free was submitted: no operation follows
  };

  struct Op {
    enum class State : std::uint8_t { kNone, kWaiting, kRunning };
    State state = State::kNone;
    Entry* entry = nullptr;
    bool frees = false;
    std::uint32_t commits_open = 0;  ///< commits of a free
    Transfer transfer;               ///< of a free only op, code and fault are used

    /// The blocks of the extent that it touches, first to last.
    [[nodiscard]] std::uint64_t first_block() const;
    [[nodiscard]] std::uint64_t last_block() const;
  };

  ExtentStore(std::unique_ptr<Device> device, Options options, std::vector<Volume> volumes);
  void adopt_extents();
  [[nodiscard]] Result<void> settle();
  [[nodiscard]] std::uint64_t under_way() const;

  [[nodiscard]] Result<void> check_create(const ExtentSpec& spec, const Striping& striping) const;
  [[nodiscard]] Result<void> check_quota(const ExtentSpec& spec, const std::string& owner) const;
  [[nodiscard]] Result<void> log_creation(Entry& entry);
  void drop_shards(ExtentId extent);
  void add(std::unique_ptr<Entry> entry);
  void remove(ExtentId extent);
  void doom(Entry& entry);

  [[nodiscard]] Result<Slot> admit(OpId id, ExtentId extent);
  void enqueue(Slot slot);
  void wake(Entry& entry);
  [[nodiscard]] static bool conflict(const Op& a, const Op& b);
  void cancel_ops(Entry& entry, Errc code);
  void start_free(Slot slot);
  void finish_op(Slot slot);

  void issue();
  [[nodiscard]] bool finish_ended();
  void on_device(const Completion& completion);
  bool handle_commits();
  void on_commit(StorePath& path, const Journal::Done& done);
  void on_created(StorePath& path, const Journal::Done& done);
  void on_freed(StorePath& path, const Journal::Done& done);
  void on_noted(const Journal::Done& done);

  std::unique_ptr<Device> device_;  // the destructor keeps alive what it may still use
  Options options_;
  ChunkEngine::Paths paths_;
  std::unique_ptr<ChunkEngine> engine_;
  std::map<ExtentId, std::unique_ptr<Entry>> extents_;
  std::map<std::string, std::uint64_t> owned_bytes_;  ///< by owner; not 0
  std::uint64_t next_extent_ = 1;
  std::size_t creating_ = 0;
  std::size_t noting_ = 0;  ///< extents with notes_open
  std::chrono::sys_seconds time_{};
  std::vector<Op> ops_;
  std::vector<Slot> free_ops_;
  std::vector<Slot> frees_;  ///< frees that can start
  std::vector<StoreCompletion> done_;
};

}  // namespace ho::flash
