#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <queue>
#include <utility>
#include <vector>

#include "common/base/result.hpp"
#include "common/schedule/schedule.hpp"
#include "tools/baselines/baselines.hpp"
#include "tools/simulator/simulate_channels.hpp"

// Private to this folder.
namespace ho::analyzer::detail {

inline constexpr std::uint32_t kNone = UINT32_MAX;
inline constexpr unsigned kFlashLane = 4;  ///< its read channel

/// The decisions of a greedy planner before the step: per position, which values leave after it and
/// which are requested when it starts. Offloader carries them out, and pages on demand if the plan
/// is late.
struct Migrations {
  struct Leave {
    std::uint32_t storage = 0;
    std::uint8_t lane = 0;  ///< read channel of the target tier, if the home copy is outdated
    bool dead = false;      ///< overwritten at its next use: dropped without a write
  };
  std::vector<std::vector<Leave>> leaves;
  std::vector<std::vector<std::uint32_t>> fetches;
};

/// The tier that a greedy planner fills first.
enum class GreedyTier : std::uint8_t { kDdrFirst, kFlashFirst };
/// How it treats a gap for whose transfers no link has time.
enum class GreedyLink : std::uint8_t { kBooked, kOverbooked };

/// G10's planning (MICRO'23, section 4) on the schedule's ops in program order. While memory
/// exceeds the budget, takes the gap that relieves most byte-seconds above the budget per transfer
/// time. It leaves at once, over the first tier whose links have time in both directions. Then each
/// fetch runs as early as memory has room. O(gaps log n) plus samples.
[[nodiscard]] Migrations plan_migrations(const schedule::Schedule& schedule,
                                         const ChannelLinks& links, const Hardware& hardware,
                                         GreedyTier tier, GreedyLink link);

/// A steady step, or the best of the last steps: a baseline must not look worse than it is.
struct StepTotals {
  std::uint64_t start_ns = 0;
  std::uint64_t end_ns = 0;
  Simulation out;
  std::array<std::uint64_t, kChannelCount> busy_ns{};
};

/// An offloader without our plan: keeps values on the device while there is room, and makes room
/// when it needs some. Positions are in program order. Each transfer gets its time on a channel
/// when it is decided. A value; run it once.
class Offloader {
 public:
  /// @param migrations  for kG10Greedy; else nullptr
  Offloader(const schedule::Schedule& schedule, const ChannelLinks& links,
            std::vector<std::uint8_t> lane, const Migrations* migrations);

  Result<Simulation> run(Baseline baseline);

 private:
  struct Value {
    bool resident = false;
    bool dirty = false;   ///< the copy on the device is newer than the home copy
    bool exists = false;  ///< was written, or is supplied at home
    bool stays = false;   ///< pinned, and an op has used it: no victim while it lives
    std::uint64_t ready_ns = 0;
    std::uint64_t home_ready_ns = 0;
    std::uint64_t uses = 0;      ///< number of ops that have used it
    std::uint64_t kept_for = 0;  ///< stamp: not a victim while it is the current one
    std::uint32_t older = kNone;
    std::uint32_t newer = kNone;
  };
  /// A planned fetch; void once an op has used the storage again.
  struct Due {
    std::uint32_t storage = 0;
    std::uint64_t uses = 0;
  };
  /// Bytes that are free from some time on.
  struct Room {
    std::uint64_t from_ns = 0;
    std::uint64_t bytes = 0;
    bool operator<(const Room& other) const { return from_ns > other.from_ns; }
  };

  [[nodiscard]] const Storage& storage(std::uint32_t s) const { return schedule_.storages[s]; }
  [[nodiscard]] std::vector<std::uint64_t> pinned_at() const;
  [[nodiscard]] Result<void> check_fits() const;
  [[nodiscard]] std::vector<std::uint32_t> cut_into_layers() const;
  void unlink(std::uint32_t s);
  void touch(std::uint32_t s);
  std::uint64_t book(unsigned channel, std::uint64_t bytes, std::uint64_t earliest_ns);
  std::uint64_t transfer(std::uint32_t s, bool toward_device, std::uint64_t earliest_ns);
  void give_room(std::uint64_t bytes, std::uint64_t from_ns);
  std::uint64_t take_room(std::uint64_t bytes);
  void drop(std::uint32_t s, std::uint64_t now_ns);
  bool bring(const schedule::Operand& operand, std::uint64_t now_ns, bool may_evict);
  bool evict_one(std::uint64_t now_ns);
  void keep(std::uint32_t position) {
    for (const auto& operand : schedule_.positions[position].operands) {
      values_[operand.storage.value()].kept_for = stamp_;
    }
  }
  void begin_step();
  void run_op(std::uint32_t position);
  void free_dead(std::uint32_t position);
  void step_on_demand();
  void step_by_layers(const std::vector<std::uint32_t>& first_of_layer);
  void step_by_migrations();
  void fetch_due(std::uint32_t position);
  void leave(std::uint32_t position);
  [[nodiscard]] bool room_by(std::uint64_t bytes, std::uint64_t at_ns);
  void drop_behind(std::uint32_t next_begin, std::uint32_t next_end);
  void look_ahead(std::uint32_t begin, std::uint32_t end, bool next_step, bool may_evict);

  const schedule::Schedule& schedule_;
  const ChannelLinks& links_;
  std::vector<std::uint64_t> last_access_;
  std::vector<std::uint8_t> lane_;  ///< per storage: the read channel of its home
  const Migrations* migrations_;
  std::deque<Due> due_;  ///< fetches that wait for room, in planned order
  std::vector<Value> values_;
  std::uint64_t budget_bytes_;

  std::priority_queue<Room> room_;
  std::uint64_t room_bytes_ = 0;
  std::uint32_t oldest_ = kNone;
  std::uint32_t newest_ = kNone;
  std::uint64_t stamp_ = 1;
  std::array<std::uint64_t, kChannelCount> channel_free_ns_{};
  std::array<std::uint64_t, 2> port_free_ns_{};
  std::uint64_t clock_ns_ = 0;  ///< end of the last op
  std::uint64_t op_start_ns_ = 0;
  StepTotals totals_;
};

}  // namespace ho::analyzer::detail
