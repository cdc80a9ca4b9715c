#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "common/base/check.hpp"
#include "common/model/graph.hpp"
#include "common/schedule/schedule.hpp"
#include "tools/analyzer/emit/emit.hpp"
#include "tools/analyzer/emit/staging.hpp"
#include "tools/analyzer/emit/transit.hpp"
#include "tools/analyzer/problem/decisions.hpp"
#include "tools/analyzer/problem/liveness.hpp"
#include "tools/analyzer/problem/problem.hpp"

namespace ho::analyzer {

/// One stay of a storage on the device: a run of accesses between two moves. The frame is the one
/// in which the first access lies in step 0.
struct Residence {
  std::uint32_t storage = 0;
  std::int64_t begin = 0;              ///< first moment that holds its bytes
  std::int64_t first_access = 0;       ///< position
  std::int64_t last_access = 0;        ///< position
  std::int64_t end = 0;                ///< last moment
  std::uint32_t arrives = UINT32_MAX;  ///< the moved gap before it; UINT32_MAX: none
  std::uint32_t leaves = UINT32_MAX;   ///< the moved gap after it; the same
  bool always = false;
};

/// The step that a global position lies in.
[[nodiscard]] inline std::int64_t step_of(std::int64_t at, std::int64_t n) {
  return at >= 0 ? at / n : -((-at + n - 1) / n);
}

/// One block of bytes held during moments [begin, end] of each step.
struct HeldBytes {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// Visits each change of owner of bytes in the steady state: visit(owner, owner's step, next,
/// next's step) with indices into `blocks`, once for each piece of bytes. Steps are relative to
/// each other.
template <typename Visit>
void for_each_succession(const std::vector<HeldBytes>& blocks, std::int64_t cycle, Visit&& visit) {
  struct Instance {
    std::int64_t begin;
    std::uint32_t block;
    std::int64_t lap;
  };
  // Visits two steps, or three if a block spans the step's end: the last one is steady.
  const bool spans = std::any_of(blocks.begin(), blocks.end(),
                                 [&](const HeldBytes& b) { return b.begin < 0 || b.end >= cycle; });
  const std::int64_t laps = spans ? 3 : 2;
  std::vector<Instance> instances;
  instances.reserve(blocks.size() * static_cast<std::size_t>(laps));
  for (std::int64_t lap = 0; lap < laps; ++lap) {
    for (std::uint32_t b = 0; b < blocks.size(); ++b) {
      instances.push_back({blocks[b].begin + lap * cycle, b, lap});
    }
  }
  std::sort(instances.begin(), instances.end(), [](const Instance& a, const Instance& b) {
    return std::tie(a.begin, a.lap, a.block) < std::tie(b.begin, b.lap, b.block);
  });
  struct Part {
    std::uint64_t end;
    std::uint32_t block;
    std::int64_t lap;
  };
  std::map<std::uint64_t, Part> held;  // by first byte; disjoint
  for (const Instance& now : instances) {
    const std::uint64_t low = blocks[now.block].offset;
    const std::uint64_t high = low + blocks[now.block].bytes;
    auto it = held.upper_bound(low);
    if (it != held.begin() && std::prev(it)->second.end > low) --it;
    while (it != held.end() && it->first < high) {
      const auto [begin, part] = *it;
      HO_CHECK(blocks[part.block].end + part.lap * cycle < now.begin);
      if (now.lap == laps - 1) visit(part.block, part.lap, now.block, now.lap);
      it = held.erase(it);
      if (begin < low) held.emplace(begin, Part{low, part.block, part.lap});
      if (part.end > high) it = held.emplace(high, part).first;
    }
    held.emplace(low, Part{high, now.block, now.lap});
  }
}

/// The work of one emit(). Internal to emit.cpp (the device), emit_slots.cpp (what lies below)
/// and emit_ends.cpp (the first and the last step). Run once.
class Emitter {
 public:
  Emitter(const Graph& graph, const Problem& input, const Decisions& decisions)
      : graph_(graph),
        in_(input),
        life_(input.lifetimes),
        decisions_(decisions),
        n_(life_.positions),
        cycle_(n_ * kMoments) {}
  Draft run(const EmitOptions& options);
  Draft run_homes();

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;

  void add_residences(std::uint32_t storage);
  void close_run(std::uint32_t storage, std::size_t first, std::size_t count, std::uint32_t arrives,
                 std::uint32_t leaves);
  void pack_device(const EmitOptions& options);
  void pack_homes();
  void pack_tier(std::size_t tier);
  void pack_flash();
  void add_home_block(std::uint32_t storage);
  void emit_stores();
  void emit_moves();
  void emit_staging();
  void emit_stage_in(std::uint32_t gap);
  void emit_order_of_bytes();
  void emit_order_of_slots();
  void wait_for(std::uint32_t before, std::int64_t before_step, std::uint32_t after,
                std::int64_t after_step);
  void wait_for_release(const Residence& owner, std::int64_t owner_lap, const Residence& next,
                        std::int64_t next_lap);
  void block(std::uint32_t detach, std::int64_t step, std::int64_t position);
  struct FirstUse;
  [[nodiscard]] std::vector<FirstUse> first_uses() const;
  void emit_prologue();
  [[nodiscard]] bool transits(const FirstUse& use) const;
  [[nodiscard]] std::vector<schedule::CacheOp> prologue_through(
      const TransitRoom& room, const std::vector<FirstUse>& uses) const;
  void add_from_flash(const FirstUse& use, TransitRing* ring, std::int64_t until,
                      std::vector<schedule::CacheOp>& out) const;
  [[nodiscard]] std::int64_t first_step_ns(const std::vector<schedule::CacheOp>& prologue) const;
  void emit_epilogue();
  void emit_epilogue_to_flash(std::uint32_t storage, std::uint32_t version,
                              std::optional<TransitRing>& ring);
  [[nodiscard]] std::vector<TransitRoom> rooms_for(std::uint64_t largest,
                                                   std::int64_t wanted_until) const;
  static void add_once(std::vector<schedule::CacheOp>& list, schedule::CacheOp op,
                       std::uint64_t ddr_offset, const std::vector<std::uint32_t>& after);
  void sort_list();
  [[nodiscard]] schedule::CacheOp whole(schedule::CacheOpKind kind, std::uint32_t storage,
                                        std::uint64_t offset) const;
  /// Whether a Prefetch whose bytes are held from position `begin` on belongs to the step that
  /// begins there: then its step's INPUTs pass it, if they are needed before.
  [[nodiscard]] bool begins_with_step(std::uint32_t storage, std::int64_t begin) const {
    return begin % n_ == 0 && !on_flash(storage);
  }
  /// The step of this Prefetch: the one that it begins with, or else that of the op before it.
  [[nodiscard]] std::int64_t step_of_fetch(std::uint32_t storage, std::int64_t begin) const {
    return step_of(begins_with_step(storage, begin) ? begin : begin - 1, n_);
  }
  [[nodiscard]] bool on_flash(std::uint32_t storage) const {
    return staging_.active() && staging_.on_flash[storage] != 0;
  }
  /// What a transfer follows that begins in the step of its value's write, or in the next.
  [[nodiscard]] schedule::Position after(std::int64_t moment) const {
    return schedule::Position(
        static_cast<std::uint32_t>(std::min(position_of(moment) - 1, n_ - 1)));
  }
  [[nodiscard]] bool begins_on_device(std::uint32_t storage) const;
  [[nodiscard]] std::size_t access_at(std::uint32_t storage, std::int64_t position) const;

  const Graph& graph_;
  const Problem& in_;
  const Lifetimes& life_;
  const Decisions& decisions_;
  Staging staging_;
  std::int64_t n_;      ///< positions
  std::int64_t cycle_;  ///< moments
  Draft out_;
  std::vector<Residence> residences_;
  std::vector<std::uint32_t> residence_of_;               // per access
  std::vector<std::uint64_t> offset_;                     // per residence
  std::vector<std::uint32_t> detach_of_;                  // per gap, index into cache_ops
  std::vector<std::uint32_t> fetch_of_;                   // per gap
  std::vector<std::uint32_t> store_of_;                   // per version
  std::vector<std::uint32_t> stage_out_of_;               // per version
  std::vector<std::uint32_t> stage_in_of_;                // per gap
  using ListKey = std::pair<std::int64_t, std::int64_t>;  // when it was played; its next use
  std::vector<ListKey> list_key_;                         // per cache op

  /// A range of local DDR that storages share over time.
  struct DdrStay {
    HeldBytes held;
    std::uint32_t storage = 0;
    std::uint32_t slot = kNone;    // staging slot; kNone: the home slot of a storage
    std::uint32_t begins = kNone;  // cache op that writes it first, and its step
    std::int64_t begins_step = 0;
    struct Release {
      std::uint32_t cache_op = 0;
      std::int64_t step = 0;
    };
    std::vector<Release> releases = {};  // transfers that read it last
    std::uint32_t last_fetch = kNone;    // the gap of the last Prefetch of a home slot
  };
  std::vector<DdrStay> ddr_stays_;
  std::vector<std::uint64_t> slot_offset_;  // per staging slot
  std::uint64_t ddr_bottom_ = 0;            // below are slots that local DDR holds all the time
  std::uint64_t ddr_top_ = 0;               // where homes and slots in local DDR end
};

}  // namespace ho::analyzer
