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

/// Format version written into and required of every schedule file.
inline constexpr std::uint32_t kFormatVersion = 1;

/// An op's place in the refined order of one step: 0 .. positions.size() - 1.
using Position = Strong<struct PositionTag, std::uint32_t>;
/// Index into Schedule::cache_ops.
using CacheOpIndex = Strong<struct CacheOpIndexTag, std::uint32_t>;

/// Where a home slot lies. Offsets are within one arena per tier, which the runtime spreads over
/// segments.
enum class HomeTier : std::uint8_t { kLocalDdr = 1, kRemoteDdr = 2, kFlash = 3 };

/// "local_ddr", "remote_ddr", "flash": the names of hardware.proto and of the JSON outputs.
[[nodiscard]] std::string_view home_tier_name(HomeTier tier);

/// A storage's place off the device. Slots of non-persistent storages may share bytes at different
/// times. What has its home on flash passes through staging slots of the local_ddr arena, which the
/// cache ops name (CacheOp::ddr_offset_bytes).
struct HomeSlot {
  HomeTier tier = HomeTier::kLocalDdr;
  std::uint64_t offset_bytes = 0;

  bool operator==(const HomeSlot&) const = default;
};

enum class Access : std::uint8_t { kRead = 1, kWrite = 2, kReadWrite = 3 };

/// One operand of one position: which storage, how, and where it lies then.
struct Operand {
  StorageIndex storage;
  Access access = Access::kRead;
  std::uint64_t device_offset_bytes = 0;

  bool operator==(const Operand&) const = default;
};

/// The op itself, without operands: an op may stand at two positions (recompute).
struct OpInfo {
  std::uint32_t id = 0;  ///< the graph's id
  std::string name;
  std::uint64_t duration_ns = 0;
  std::string phase;
  bool fixed = false;
  bool recomputable = false;
  std::vector<OpIndex> after = {};  ///< control dependencies of the graph: they come first

  bool operator==(const OpInfo&) const = default;
};

/// One position of the refined order.
struct ScheduledOp {
  OpIndex op;
  std::vector<Operand> operands;  ///< each storage once

  bool operator==(const ScheduledOp&) const = default;
};

/// Numbers are schedule.proto's.
enum class CacheOpKind : std::uint8_t {
  kPrefetch = 1,  ///< pool -> device
  kStore = 2,     ///< device -> pool; releases nothing
  kDetach = 3,    ///< release of device bytes; moves nothing
  kStageIn = 4,   ///< flash home -> staging slot in local DDR
  kStageOut = 5,  ///< staging slot in local DDR -> flash home; releases nothing by itself
};

/// "prefetch", "store", "detach", "stage_in", "stage_out".
[[nodiscard]] std::string_view cache_op_kind_name(CacheOpKind kind);

/// Another cache op that must be complete first: of the same step, or that op's instance one step
/// earlier.
struct CacheOpRef {
  CacheOpIndex op;
  bool previous_step = false;

  bool operator==(const CacheOpRef&) const = default;
};

/// One transfer or release. In the steady state it has one instance per step k; the instance
/// belongs to the step of its after_position.
struct CacheOp {
  CacheOpKind kind = CacheOpKind::kPrefetch;
  StorageIndex storage;
  std::uint64_t range_begin_bytes = 0;  ///< within the storage; version 1 has whole storages only:
  std::uint64_t range_end_bytes = 0;    ///< begin == 0, end == storage bytes
  std::uint64_t device_offset_bytes = 0;  ///< of the storage's first byte; 0 where staging
  /// The staging slot in the local_ddr arena that is read or written. Set exactly where the storage
  /// has its home on flash and bytes move (not for a Detach); the home slot itself otherwise.
  std::optional<std::uint64_t> ddr_offset_bytes;
  /// Starts after this position's op has ended; nothing: as soon as the step begins.
  std::optional<Position> after_position;
  /// The op at this position waits for this one. Nothing: only cache ops (or the step's period)
  /// wait.
  std::optional<Position> before_position;
  bool before_next_step = false;  ///< before_position is meant in the step after this instance's
  std::vector<CacheOpRef> after_cache_ops;
  /// Predicted, from the step's start; may exceed step_ns where it reaches into the next step.
  std::uint64_t start_ns = 0;
  std::uint64_t end_ns = 0;

  bool operator==(const CacheOp&) const = default;
};

/// Why a storage was moved or kept. For `explain` and the report.
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

/// What the analyzer predicted of the steady state; the fields of `analyze --json`.
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
  std::uint32_t recomputed_ops = 0;  ///< runs beyond the first of each op
  std::uint32_t moved_ops = 0;       ///< ops that left program order
  /// The step had the order not been refined; 0: there was no plan in program order.
  std::uint64_t program_order_step_ns = 0;
  std::uint64_t first_step_ns = 0;  ///< from its start, with an empty device, to its last op's end
  std::uint64_t prologue_ns = 0;    ///< from the first step's start until all of it has arrived
  /// From the last step's end until every persistent storage's latest value is in its home slot.
  std::uint64_t epilogue_ns = 0;
  /// Lowest factors on all bandwidths, and on all op durations, at which the stall stays below 2 %
  /// of the compute time, as far as margin_of() looks; 0: it does not even as planned.
  double margin_bandwidth = 0;
  double margin_op_time = 0;
  std::vector<TierPeak> tiers;
  std::vector<ChannelLoad> channels;
  std::vector<std::uint64_t>
      op_start_ns;  ///< per position, from the step's start; includes stalls before

  bool operator==(const Prediction&) const = default;
};

/// A compiled plan of one repeating step: what `analyze` writes, `validate` proves and the runtime
/// replays. A value. Self-contained: holds the graph's storages, ops and accesses.
///
/// Steps. Step k runs the positions 0 .. N-1 in order on one compute stream. Each element of
/// cache_ops has one instance per step. The prologue runs before and during the first step in place
/// of the instances of step -1: it brings from home what the steady state finds on the device at a
/// step's start, or in flight. References to previous-step instances are void in the first step.
/// The epilogue runs after the last step: it stores what home lacks. Every persistent storage and
/// every INPUT storage has a home slot.
struct Schedule {
  std::uint32_t format_version = kFormatVersion;
  std::string graph_name;
  std::uint64_t graph_fingerprint = 0;
  Hardware hardware;
  std::uint64_t device_budget_bytes = 0;
  std::uint64_t arena_bytes = 0;  ///< highest end offset on the device; <= device_budget_bytes
  std::uint64_t align_bytes = 64;
  std::uint64_t local_ddr_bytes = 0;  ///< size of the home arena per tier: highest end offset
  std::uint64_t remote_ddr_bytes = 0;
  std::uint64_t flash_bytes = 0;
  std::vector<Storage> storages;
  std::vector<std::optional<HomeSlot>> homes;  ///< parallel to storages
  std::vector<OpInfo> ops;
  std::vector<ScheduledOp> positions;
  std::vector<CacheOp> cache_ops;
  /// kPrefetch and kStageIn only; before_position in step 0; no after_position.
  std::vector<CacheOp> prologue;
  /// kStore and kStageOut only; run after the last position of the last step.
  std::vector<CacheOp> epilogue;
  Prediction prediction;
  std::vector<Explanation> explanations;

  bool operator==(const Schedule&) const = default;
};

/// Whether a transfer reads from the slower side: Prefetch and StageIn.
[[nodiscard]] bool moves_toward_device(CacheOpKind kind);

/// The tier whose read or write channel a transfer takes: flash where it stages, local DDR where it
/// uses a staging slot, else its home's (local DDR where there is none). The op is no Detach.
[[nodiscard]] HomeTier transfer_tier(const Schedule& schedule, const CacheOp& op);

/// Measured times of one executed step, from its start. Parallel to Schedule::positions and
/// cache_ops.
struct MeasuredStep {
  struct Span {
    std::uint64_t start_ns = 0;
    std::uint64_t end_ns = 0;
  };
  std::vector<Span> ops;
  std::vector<std::uint64_t> stall_ns;           ///< waited in before(), per position
  std::vector<std::uint64_t> awaited_bytes;      ///< of the transfers waited for, per position
  std::vector<Span> cache_ops;                   ///< from the first piece sent to the last arrived
  std::vector<std::uint64_t> queue_ns;           ///< waited for the link before that, per cache op
  std::vector<std::uint64_t> cache_op_stall_ns;  ///< ops' waits that its end ended, per cache op
};

}  // namespace ho::schedule
