#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.hpp"
#include "common/model/op.hpp"
#include "daemon/tier/flash/device/aligned_memory.hpp"
#include "daemon/tier/flash/device/device.hpp"
#include "daemon/tier/flash/log/journal.hpp"
#include "daemon/tier/flash/log/layout.hpp"
#include "daemon/tier/flash/log/recover.hpp"
#include "daemon/tier/flash/log/table.hpp"

namespace ho::flash {

struct ExtentSpec {
  Owner owner;
  std::uint64_t length_bytes = 0;
  Policy policy = Policy::kScratch;
};

struct ReadOp {
  OpId op;
  ExtentId extent;
  std::uint64_t offset_bytes = 0;
  std::span<std::byte> into;
};

struct WriteOp {
  OpId op;
  ExtentId extent;
  std::uint64_t offset_bytes = 0;
  std::span<const std::byte> from;
};

struct FreeOp {
  OpId op;
  ExtentId extent;
};

/// Where an operation met what ended it.
struct Fault {
  PathIndex path;
  ExtentId extent;
  std::uint64_t block = 0;        ///< of the extent, in blocks of 4 KiB
  std::uint64_t path_offset = 0;  ///< byte of the path
  bool path_full = false;         ///< a durable overwrite found no free block
};

struct StoreCompletion {
  Completion done;
  Fault fault;  ///< meaningful where done.code is not kOk
};

struct PathStatus {
  std::string name;
  std::uint64_t capacity_bytes = 0;  ///< for data
  std::uint64_t free_bytes = 0;
  Wear wear;
  std::uint64_t write_bytes_per_day_max = 0;  ///< 0: no budget
  bool broken = false;                        ///< readable, takes no durable change
  std::string broken_why;                     ///< in words; empty where it is not
};

/// The flash tier of one node: extents striped over paths, every block under a checksum.
///
/// * A read gives exactly what was written last, or an error: kCorrupt (a checksum does not match),
///   kNotFound (a block that was never written), kIo.
/// * The memory of an operation may vanish under it (its file is cut short by whoever shares it):
///   kUnavailable. After install_memory_guard() on the owner's thread; without, that is SIGBUS.
/// * A write of a durable extent completes when data, checksums and log are safe. A crash before
///   leaves each of its blocks old or new, and so does a failed one, unless the device lost what it
///   had completed without the machine going down (LAYOUT.md): then blocks may read as kCorrupt.
/// * A write of a scratch extent completes when the device took it. Nothing of it is left after
///   a crash. After a failed one the blocks may read as kCorrupt.
/// * Operations on common blocks of an extent happen in the order of submit(); others in any order.
///
/// Owner: one thread, also the device's. submit() and poll() never block and allocate nothing;
/// open(), create() and close() may. Lifecycle: open -> operations -> close, or just the
/// destructor, which is a crash as far as the paths are concerned; no operation may be in flight.
/// Those of its logs are waited for, up to kEndTurns times 100 ms.
class Store {
 public:
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  ~Store();

  struct Options {
    std::size_t ops_max = 256;
    std::size_t bounce_buffers = 16;  ///< 1 MiB each, for unaligned ends and memory
    std::uint32_t day = 0;            ///< days since 1970, UTC
    /// So many extents can be made. About half a KiB of memory each, however small it is.
    std::size_t extents_max = std::size_t{1} << 20U;
    std::uint64_t salt = 0;  ///< random
    SetId new_set{};         ///< random; for formatting
    /// So much written data is worth a frame of its own in the log (8 KiB) while others are open.
    std::uint64_t frame_data_bytes_min = kMiB;
    /// Per path, logs included; missing or 0: no budget. A durable block counts three times until
    /// its write has ended, as its frame may be its own: what would fit but for that is kBusy.
    std::vector<std::uint64_t> write_bytes_per_day_max;
  };

  /// Recovers the paths of a device, formats them where all are blank, and begins a new log on
  /// each. `findings` says what was seen and did no harm.
  /// @return kCorrupt, kUnsupported, kConflict (paths that are no set), kInvalidArgument (size),
  /// kIo, kDeadline: the device does not answer.
  [[nodiscard]] static Result<std::unique_ptr<Store>> open(std::unique_ptr<Device> device,
                                                           Options options, Findings& findings);

  /// Reserves space; all or nothing. Operations can be submitted at once.
  /// @return kInvalidArgument; kExhausted: no space, the log could not hold it, extents_max, or a
  /// path's write budget of the day; kBusy: too many are being made, or what is under way may need
  /// that budget; kIo: a path is broken.
  [[nodiscard]] Result<ExtentId> create(const ExtentSpec& spec);

  /// Each accepted operation gets one completion. Memory belongs to the store until then, and
  /// what is written must not change.
  /// @return kNotFound, kOutOfRange, kInvalidArgument (empty), kBusy (ops_max, or what is under way
  /// may need the write budget), kExhausted (a path's write budget of the day); nothing was started
  /// then.
  [[nodiscard]] Result<void> submit(const ReadOp& op);
  [[nodiscard]] Result<void> submit(const WriteOp& op);
  /// Completes when the extent is gone for good and its space is free.
  [[nodiscard]] Result<void> submit(const FreeOp& op);

  /// Ends every scratch extent of a session: operations that have not begun get kCanceled.
  void end_session(std::uint64_t instance, std::uint64_t session);

  std::size_t poll(std::span<StoreCompletion> out);
  void wait(Duration time_max) { device_->wait(time_max); }

  /// Makes counters safe. Every operation has completed.
  [[nodiscard]] Result<void> close();

  /// Call often; cost: nothing but a look at each path. Writes each path's wear counters down when
  /// they are kSaveWearAfter old: a crash forgets no more.
  ///
  /// Lets each log that took no durable write for kSealAfter say that all it holds is safe,
  /// whatever else goes on. Without, recovery after a power cut takes a block of the last writes
  /// that was damaged since for one that never arrived.
  void tend_logs(TimePoint now);
  static constexpr auto kSealAfter = std::chrono::milliseconds(100);
  static constexpr auto kSaveWearAfter = std::chrono::seconds(5);
  /// The same at once, for all paths.
  void seal();
  /// Whether there is nothing to say so of.
  [[nodiscard]] bool sealed() const;

  /// How the making of a durable extent stands: until it is kMade a crash forgets it.
  enum class Making : std::uint8_t { kUnderWay, kMade, kFailed };
  [[nodiscard]] Making making(ExtentId extent) const;

  void set_day(std::uint32_t day) { options_.day = day; }
  [[nodiscard]] Device& device() { return *device_; }
  /// What the device of so many paths has to take at a time: the logs' share, and work beside it.
  [[nodiscard]] static constexpr std::uint32_t depth_ops(std::size_t path_count) {
    return std::max(64U, 16 * static_cast<std::uint32_t>(path_count));
  }
  [[nodiscard]] const std::string& notice() const { return device_->caps().notice; }
  [[nodiscard]] std::size_t extent_count() const { return extents_.size(); }
  [[nodiscard]] std::vector<PathStatus> paths() const;
  /// By id, without those being made; the first `count_max` behind `after`. Cost: what it returns.
  [[nodiscard]] std::vector<ExtentInfo> extents(ExtentId after = ExtentId(0),
                                                std::size_t count_max = SIZE_MAX) const;
  [[nodiscard]] std::optional<ExtentInfo> find(ExtentId extent) const;
  /// "path /x: extent 7, block 12 (byte 49152 of the path)"
  [[nodiscard]] std::string describe(const Fault& fault) const;
  /// Every block has one owner or is free. For tests; cost: all blocks.
  void check_space() const;

 private:
  using Slot = std::uint32_t;

  /// A ring of slots with room for all there are.
  class SlotQueue {
   public:
    explicit SlotQueue(std::size_t capacity) : ring_(capacity) {}
    [[nodiscard]] bool empty() const { return count_ == 0; }
    [[nodiscard]] Slot front() const { return ring_[first_]; }
    void push(Slot slot);
    void pop();

   private:
    std::vector<Slot> ring_;
    std::size_t first_ = 0;
    std::size_t count_ = 0;
  };

  struct PathState {
    PathState(Device& device, Volume&& recovered, Journal::Options options, std::size_t ops_max)
        : volume(std::move(recovered)), journal(device, volume, options), for_space(ops_max) {}
    Volume volume;
    Journal journal;
    SlotQueue for_space;  ///< operations that wait for a free block here, in their order
    std::uint64_t write_bytes_per_day_max = 0;
    // Of the day's budget: to data that is not on the device yet, and to one copy of the frames of
    // changes that are not safe yet.
    std::uint64_t promised_bytes = 0;
    std::uint64_t promised_frame_bytes = 0;
    std::uint64_t durable_extents = 0;
    std::uint64_t durable_blocks = 0;
    std::uint64_t freeing = 0;  ///< moved chunks and frees under way: blocks come free with each
    std::uint64_t write_frames_seen = 0;  ///< of the journal, as tend_logs() last saw them
    TimePoint write_frames_since;
    std::uint64_t unsaved_wear_seen = 0;
    TimePoint wear_saved;  ///< when a frame was last seen to have taken its counters down
  };

  struct Extent {
    enum class State : std::uint8_t { kCreating, kLive, kFreeing, kDoomed, kLost };
    ExtentInfo info;
    State state = State::kLive;
    std::uint32_t commits_open = 0;  ///< of its creation
    std::vector<Shard*> shards;      ///< by path; nullptr: none there
    std::vector<Slot> ops;           ///< in the order of submit()
    bool ending = false;             ///< its free has been submitted: nothing comes after it
  };

  struct Op {
    enum class Kind : std::uint8_t { kRead, kWrite, kFree };
    enum class State : std::uint8_t { kNone, kWaiting, kRunning };
    OpId id;
    Kind kind = Kind::kRead;
    State state = State::kNone;
    Extent* extent = nullptr;
    std::uint64_t offset = 0;
    std::uint64_t length = 0;
    std::byte* memory = nullptr;
    std::uint64_t issued = 0;
    std::uint32_t open = 0;  ///< chunks or commits under way
    bool issuing = false;    ///< in issuing_ or a path's for_space
    Errc code = Errc::kOk;
    Fault fault;
  };

  /// One device transfer of an op: blocks that lie together on one path.
  struct Chunk {
    Slot op = 0;
    std::uint16_t path = 0;
    std::uint32_t block = 0;  ///< of the shard
    std::uint32_t blocks = 0;
    std::uint32_t physical = 0;
    std::byte* user = nullptr;
    std::uint32_t user_bytes = 0;
    std::uint32_t head_bytes = 0;  ///< of the first block before the user's
    std::byte* bounce = nullptr;   ///< nullptr: straight from and to the user's memory
    bool promised = false;         ///< a write that is not on the device yet
    bool moved = false;            ///< writes to new blocks; the old stay until it is safe
    std::uint32_t fills_open = 0;  ///< old ends being read
    Errc fill_code = Errc::kOk;
    std::array<std::uint64_t, kStripeBlocks> sums{};
  };
  enum class Role : std::uint8_t { kData = 0, kHead = 1, kTail = 2 };

  Store(std::unique_ptr<Device> device, Options options, std::vector<Volume> volumes);

  [[nodiscard]] static Result<std::vector<Volume>> recover_all(BlockingIo& io,
                                                               const Options& options,
                                                               Findings& findings);
  static void drop_incomplete(std::vector<Volume>& volumes, Findings& findings);
  void adopt_extents();
  [[nodiscard]] Result<void> settle();
  [[nodiscard]] std::uint64_t under_way() const;

  [[nodiscard]] Result<void> check_create(const ExtentSpec& spec, const Striping& striping);
  [[nodiscard]] std::uint64_t make_shard(PathState& path, const ExtentInfo& info,
                                         std::uint64_t blocks);
  void drop_shards(const ExtentInfo& info);
  void release(Extent& extent);

  [[nodiscard]] Result<Slot> admit(OpId id, ExtentId extent);
  [[nodiscard]] Result<void> check_range(const Extent& extent, std::uint64_t offset,
                                         std::uint64_t length) const;
  /// Bytes by path.
  using Shares = std::array<std::uint64_t, kPathsMax>;
  /// Of a budget: what data takes, and what one copy of the frames may.
  struct Need {
    Shares data{};
    Shares frames{};
  };
  [[nodiscard]] Need need_left(const Op& op) const;
  [[nodiscard]] static std::uint64_t new_logs_bytes(const PathState& path,
                                                    std::uint64_t frame_bytes);
  [[nodiscard]] Result<void> check_budget(const Need& need) const;
  void promise(const Need& need);
  void give_back(const Need& need);
  void give_back_data(Chunk& chunk);
  void enqueue(Slot slot);
  void wake(Extent& extent);
  [[nodiscard]] bool conflicts(const Op& a, const Op& b) const;
  void finish_op(Slot slot);
  void fail_op(Op& op, Errc code, const Fault& fault);

  void issue();
  [[nodiscard]] bool issue_from(SlotQueue& queue);
  enum class Started : std::uint8_t { kYes, kNoRoom, kNoSpace, kFailed };
  [[nodiscard]] Started issue_op(Slot slot);
  [[nodiscard]] PathState& next_path(const Op& op);
  [[nodiscard]] Started start_chunk(Slot slot);
  enum class Placed : std::uint8_t { kYes, kWait, kFull, kBroken };
  [[nodiscard]] Placed place_write(const Op& op, Chunk& chunk, const Shard& shard);
  void start_write(Slot index);
  void start_free(Slot slot);
  void fill_ends(Slot index);
  void submit_chunk(Slot index, Role role, DeviceOpKind kind);
  [[nodiscard]] std::span<std::byte> block_memory(const Chunk& chunk) const;

  void on_device(const Completion& completion);
  void on_filled(Slot index, Role role, Errc code);
  void on_read(Slot index, Errc code);
  void on_written(Slot index, Errc code);
  bool handle_commits();
  void on_commit(PathState& path, const Journal::Done& done);
  void finish_chunk(Slot index, Errc code, std::uint32_t bad_block = 0);
  [[nodiscard]] Fault fault_at(const Chunk& chunk, std::uint32_t block) const;
  [[nodiscard]] Shard& shard_of(const Chunk& chunk) const {
    return *ops_[chunk.op].extent->shards[chunk.path];
  }

  static constexpr int kEndTurns = 100;

  std::unique_ptr<Device> device_;  // the destructor sees to what of the rest it still uses
  Options options_;
  std::vector<std::unique_ptr<PathState>> paths_;
  std::map<ExtentId, std::unique_ptr<Extent>> extents_;
  std::uint64_t next_extent_ = 1;
  std::size_t creating_ = 0;
  std::vector<Op> ops_;
  std::vector<Slot> free_ops_;
  std::vector<Chunk> chunks_;
  std::vector<Slot> free_chunks_;
  SlotQueue issuing_;
  AlignedMemory bounce_memory_;
  std::vector<std::byte*> free_bounces_;
  std::uint32_t device_open_ = 0;    ///< operations of chunks on the device
  std::uint32_t device_depth_ = 0;   ///< for chunks
  std::uint64_t checked_bytes_ = 0;  ///< in this poll()
  std::vector<StoreCompletion> done_;
};

}  // namespace ho::flash
