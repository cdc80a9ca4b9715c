#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/strong.hpp"
#include "common/model/graph.hpp"
#include "common/model/hardware.hpp"

namespace ho::schedule {

/// The format version of schedule files. Readers refuse other versions.
inline constexpr std::uint32_t kFormatVersion = 1;

/// The place of an op in the refined order of one step: 0 .. positions.size() - 1.
using Position = Strong<struct PositionTag, std::uint32_t>;
/// Index into Schedule::cache_ops.
using CacheOpIndex = Strong<struct CacheOpIndexTag, std::uint32_t>;

/// The tier of a home slot. Offsets are within one arena per tier; the runtime maps it to segments.
enum class HomeTier : std::uint8_t { kLocalDdr = 1, kRemoteDdr = 2, kFlash = 3 };

/// "local_ddr", "remote_ddr", "flash": the names in hardware.proto and in JSON outputs.
[[nodiscard]] std::string_view home_tier_name(HomeTier tier);

/// A storage's place off the device. Slots of non-persistent storages may share bytes at different
/// times. A storage with its home on flash moves through staging slots in the local_ddr arena; its
/// cache ops name them (CacheOp::ddr_offset_bytes).
struct HomeSlot {
  HomeTier tier = HomeTier::kLocalDdr;
  std::uint64_t offset_bytes = 0;

  bool operator==(const HomeSlot&) const = default;
};

enum class Access : std::uint8_t { kRead = 1, kWrite = 2, kReadWrite = 3 };

/// One operand of one position: the storage, the kind of access, and the device offset at that
/// time.
struct Operand {
  StorageIndex storage;
  Access access = Access::kRead;
  std::uint64_t device_offset_bytes = 0;

  bool operator==(const Operand&) const = default;
};

/// An op without its operands. An op may stand at several positions (recompute).
struct OpInfo {
  std::uint32_t id = 0;  ///< the id in the graph
  std::string name;
  std::uint64_t duration_ns = 0;
  std::string phase;
  bool fixed = false;
  bool recomputable = false;
  std::vector<OpIndex> after = {};  ///< control dependencies of the graph: these ops run first

  bool operator==(const OpInfo&) const = default;
};

/// One position of the refined order.
struct ScheduledOp {
  OpIndex op;
  std::vector<Operand> operands;  ///< each storage once

  bool operator==(const ScheduledOp&) const = default;
};

/// The numbers are those of schedule.proto.
enum class CacheOpKind : std::uint8_t {
  kPrefetch = 1,  ///< pool -> device
  kStore = 2,     ///< device -> pool; does not release device bytes
  kDetach = 3,    ///< releases device bytes; moves nothing
  kStageIn = 4,   ///< flash home -> staging slot in local DDR
  kStageOut = 5,  ///< staging slot in local DDR -> flash home; does not release the slot
};

/// "prefetch", "store", "detach", "stage_in", "stage_out".
[[nodiscard]] std::string_view cache_op_kind_name(CacheOpKind kind);

/// A cache op that must complete first: an instance of the same step, or of the step before.
struct CacheOpRef {
  CacheOpIndex op;
  bool previous_step = false;

  bool operator==(const CacheOpRef&) const = default;
};

/// One transfer or release. In the steady state it has one instance per step. An instance belongs
/// to the step of its after_position.
struct CacheOp {
  CacheOpKind kind = CacheOpKind::kPrefetch;
  StorageIndex storage;
  std::uint64_t range_begin_bytes = 0;  ///< within the storage; version 1 moves whole storages:
  std::uint64_t range_end_bytes = 0;    ///< begin == 0, end == storage bytes
  std::uint64_t device_offset_bytes =
      0;  ///< device offset of the storage's first byte; 0 for StageIn and StageOut
  /// The staging slot in the local_ddr arena that the cache op reads or writes. Present only if the
  /// storage has its home on flash and the cache op moves bytes (is not a Detach). Otherwise the
  /// cache op uses the home slot.
  std::optional<std::uint64_t> ddr_offset_bytes;
  /// Which home a Store writes: 0: Schedule::homes, 1: Schedule::second_homes. Else 0: a Prefetch
  /// may be served from every home of its storage.
  std::uint8_t copy = 0;
  /// Starts after the op at this position ends. nullopt: starts when the step begins.
  std::optional<Position> after_position;
  /// The op at this position waits for this cache op. nullopt: only other cache ops, or the end of
  /// the step's period, wait for it.
  std::optional<Position> before_position;
  bool before_next_step = false;  ///< before_position is in the step after this instance's step
  std::vector<CacheOpRef> after_cache_ops;
  /// Predicted times from the start of the step. May exceed step_ns if the transfer reaches into
  /// the next step.
  std::uint64_t start_ns = 0;
  std::uint64_t end_ns = 0;

  bool operator==(const CacheOp&) const = default;
};

/// Why the planner moved or kept a storage. For `explain` and the report.
struct Explanation {
  StorageIndex storage;
  std::string choice;                   ///< "keep", "offload local_ddr", ...
  std::string reason;                   ///< one or two sentences with numbers
  std::vector<std::string> considered;  ///< each alternative with its cost

  bool operator==(const Explanation&) const = default;
};

struct TierPeak {
  std::string name;  ///< "device", "local_ddr", "remote_ddr", "flash"
  std::uint64_t peak_bytes = 0;

  bool operator==(const TierPeak&) const = default;
};

struct ChannelLoad {
  std::string name;  ///< "local_ddr.read", ...
  std::uint64_t busy_ns = 0;

  bool operator==(const ChannelLoad&) const = default;
};

/// The analyzer's prediction for the steady state; the fields of `analyze -o json`.
struct Prediction {
  std::uint64_t peak_unmanaged_bytes = 0;
  std::uint64_t peak_planned_bytes = 0;
  std::uint64_t live_bound_bytes = 0;
  std::uint64_t compute_ns = 0;
  std::uint64_t step_ns = 0;
  std::uint64_t stall_ns = 0;
  std::uint64_t lower_bound_ns = 0;
  std::uint64_t prefetch_bytes = 0;
  std::uint64_t store_bytes = 0;
  std::uint64_t stage_in_bytes = 0;
  std::uint64_t stage_out_bytes = 0;
  std::uint32_t recomputed_ops = 0;  ///< runs of ops beyond the first
  std::uint32_t moved_ops = 0;       ///< ops that are not at their place in program order
  /// Step time of the best plan in program order. 0: there was no such plan.
  std::uint64_t program_order_step_ns = 0;
  /// Plans that were refused before this one was taken, since they could not be simulated or
  /// proven: each is a mistake of the planner. Not written to files.
  std::uint32_t refused_plans = 0;
  std::uint64_t first_step_ns =
      0;  ///< from the start of the first step, with an empty device, to the end of its last op
  std::uint64_t prologue_ns =
      0;  ///< from the start of the first step until all transfers of the prologue have arrived
  /// From the end of the last step until the latest value of every persistent storage is in its
  /// home slot.
  std::uint64_t epilogue_ns = 0;
  /// The lowest factor on all bandwidths, and the lowest on all op durations, at which the stall
  /// stays below 2 % of the compute time, within the range that margin_of() searches. 0: the stall
  /// exceeds 2 % already as planned.
  double margin_bandwidth = 0;
  double margin_op_time = 0;
  std::vector<TierPeak> tiers;
  std::vector<ChannelLoad> channels;
  std::vector<std::uint64_t>
      op_start_ns;  ///< per position, from the start of the step; includes stalls before it

  bool operator==(const Prediction&) const = default;
};

/// A compiled plan of one repeating step. `analyze` writes it, `validate` proves it legal, the
/// runtime replays it. A value. Self-contained: holds the graph's storages, ops and accesses.
///
/// Step k runs positions 0 .. N-1 in order on one compute stream. Each element of cache_ops has one
/// instance per step. The prologue replaces the instances of step -1: it runs before and during the
/// first step, and brings from home the storages that a steady step finds on the device, or in
/// flight, when it starts. In the first step, references to instances of the previous step have no
/// effect. The epilogue runs after the last step and stores the values that home slots lack. Every
/// persistent storage and every INPUT storage has a home slot.
struct Schedule {
  std::uint32_t format_version = kFormatVersion;
  std::string graph_name;
  std::uint64_t graph_fingerprint = 0;
  Hardware hardware;
  std::uint64_t device_budget_bytes = 0;
  std::uint64_t arena_bytes = 0;  ///< highest end offset on the device; <= device_budget_bytes
  std::uint64_t align_bytes = 64;
  std::uint64_t local_ddr_bytes =
      0;  ///< size of the home arena of each tier: its highest end offset
  std::uint64_t remote_ddr_bytes = 0;
  std::uint64_t flash_bytes = 0;
  std::vector<Storage> storages;
  std::vector<std::optional<HomeSlot>> homes;  ///< parallel to storages
  /// Parallel to storages; empty where no storage has one. In DDR, as the first home of such a
  /// storage is. The client that maps the slots to memory puts both homes of a storage into
  /// different failure domains: on different nodes.
  std::vector<std::optional<HomeSlot>> second_homes;
  std::vector<OpInfo> ops;
  std::vector<ScheduledOp> positions;
  std::vector<CacheOp> cache_ops;
  /// Prefetch and StageIn only. before_position is in step 0; after_position is absent.
  std::vector<CacheOp> prologue;
  /// Store and StageOut only. Runs after the last position of the last step.
  std::vector<CacheOp> epilogue;
  Prediction prediction;
  std::vector<Explanation> explanations;

  bool operator==(const Schedule&) const = default;
};

/// True for Prefetch and StageIn.
[[nodiscard]] bool moves_toward_device(CacheOpKind kind);

/// The second home of a storage; nothing: it has none.
[[nodiscard]] std::optional<HomeSlot> second_home(const Schedule& schedule, StorageIndex storage);

/// The tier whose read or write channel a transfer uses: flash for StageIn and StageOut, local DDR
/// if it uses a staging slot, else the tier of the home that it uses (local DDR if it has none).
/// The op must not be a Detach.
[[nodiscard]] HomeTier transfer_tier(const Schedule& schedule, const CacheOp& op);

/// Measured times of one executed step, counted from its start. Lists are parallel to
/// Schedule::positions or Schedule::cache_ops.
struct MeasuredStep {
  struct Span {
    std::uint64_t start_ns = 0;
    std::uint64_t end_ns = 0;
  };
  std::vector<Span> ops;
  std::vector<std::uint64_t> stall_ns;  ///< per position: time spent waiting in before()
  std::vector<std::uint64_t>
      awaited_bytes;  ///< per position: bytes of the transfers that it waited for
  std::vector<Span>
      cache_ops;  ///< per cache op: from sending the first piece to the arrival of the last
  std::vector<std::uint64_t> queue_ns;  ///< per cache op: time in the queue of its link before that
  std::vector<std::uint64_t>
      cache_op_stall_ns;  ///< per cache op: waiting time of ops that its end ended
};

}  // namespace ho::schedule
