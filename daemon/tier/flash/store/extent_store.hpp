#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
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
  Owner owner;
  std::uint64_t length_bytes = 0;
  Policy policy = Policy::kScratch;
};

struct FreeOp {
  OpId op;
  ExtentId extent;
};

struct StoreCompletion {
  Completion done;
  Fault fault;  ///< meaningful where done.code is not kOk
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
/// The store decides on extents and the order of operations; ChunkEngine moves the bytes, each
/// StorePath keeps its log and its budget.
///
/// Owner: one thread, also the device's. submit() and poll() never block and allocate nothing;
/// open(), create() and close() may. Lifecycle: open -> operations -> close, or just the
/// destructor, which is a crash as far as the paths are concerned; no operation may be in flight.
/// Those of its logs are waited for, up to ten seconds.
class ExtentStore {
 public:
  ExtentStore(const ExtentStore&) = delete;
  ExtentStore& operator=(const ExtentStore&) = delete;
  ~ExtentStore();

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
  /// each. `findings` says what was seen and did no harm. @return as open_path_set(), and kIo where
  /// a log cannot be written.
  [[nodiscard]] static Result<std::unique_ptr<ExtentStore>> open(std::unique_ptr<Device> device,
                                                                 Options options,
                                                                 Findings& findings);

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
  [[nodiscard]] Result<void> submit(const TransferOp& op);
  /// Completes when the extent is gone for good and its space is free.
  [[nodiscard]] Result<void> submit(const FreeOp& op);

  /// Ends every scratch extent of a session: operations that have not begun get kCanceled.
  void end_session(std::uint64_t instance, std::uint64_t session);

  std::size_t poll(std::span<StoreCompletion> out);
  void wait(Duration time_max) { device_->wait(time_max); }

  /// Makes counters safe. Every operation has completed.
  [[nodiscard]] Result<void> close();

  /// Call often; cost: nothing but a look at each path. Writes each path's wear counters down when
  /// they are StorePath::kSaveWearAfter old: a crash forgets no more.
  ///
  /// Lets each log that took no durable write for kSealAfter say that all it holds is safe,
  /// whatever else goes on. Without, recovery after a power cut takes a block of the last writes
  /// that was damaged since for one that never arrived.
  void tend_logs(TimePoint now);
  static constexpr auto kSealAfter = StorePath::kSealAfter;
  /// The same at once, for all paths.
  void seal();
  /// Whether all logs say so.
  [[nodiscard]] bool sealed() const;

  /// How the making of a durable extent stands: until it is kMade a crash forgets it.
  enum class Making : std::uint8_t { kUnderWay, kMade, kFailed };
  [[nodiscard]] Making making(ExtentId extent) const;

  void set_day(std::uint32_t day);
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

  /// An extent and what is under way on it.
  ///
  ///   kCreating -> kLive -> kFreeing -> (gone)    durable: the log makes both ends safe
  ///   kCreating, kFreeing -> kLost                the log broke: nobody knows
  ///   kLive -> kDoomed -> (gone)                  scratch, when its session ends
  struct Entry {
    enum class State : std::uint8_t { kCreating, kLive, kFreeing, kDoomed, kLost };
    Extent extent;
    State state = State::kLive;
    std::uint32_t commits_open = 0;  ///< of its creation
    std::vector<Slot> ops;           ///< in the order of submit()
    bool ending = false;             ///< its free has been submitted: nothing comes after it
  };

  struct Op {
    enum class State : std::uint8_t { kNone, kWaiting, kRunning };
    State state = State::kNone;
    Entry* entry = nullptr;
    bool frees = false;
    std::uint32_t commits_open = 0;  ///< of a free
    Transfer transfer;               ///< of a free: op, code and fault alone

    /// Blocks of the extent that it touches, first to last.
    [[nodiscard]] std::uint64_t first_block() const;
    [[nodiscard]] std::uint64_t last_block() const;
  };

  ExtentStore(std::unique_ptr<Device> device, Options options, std::vector<Volume> volumes);
  void adopt_extents();
  [[nodiscard]] Result<void> settle();
  [[nodiscard]] std::uint64_t under_way() const;

  [[nodiscard]] Result<void> check_create(const ExtentSpec& spec, const Striping& striping) const;
  [[nodiscard]] Result<void> log_creation(Entry& entry);
  void drop_shards(ExtentId extent);
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

  std::unique_ptr<Device> device_;  // the destructor sees to what of the rest it still uses
  Options options_;
  ChunkEngine::Paths paths_;
  std::unique_ptr<ChunkEngine> engine_;
  std::map<ExtentId, std::unique_ptr<Entry>> extents_;
  std::uint64_t next_extent_ = 1;
  std::size_t creating_ = 0;
  std::vector<Op> ops_;
  std::vector<Slot> free_ops_;
  std::vector<Slot> frees_;  ///< that can start
  std::vector<StoreCompletion> done_;
};

}  // namespace ho::flash
