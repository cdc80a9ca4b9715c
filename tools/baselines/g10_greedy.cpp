#include <algorithm>
#include <optional>
#include <queue>
#include <utility>
#include <vector>

#include "common/base/check.hpp"
#include "common/model/links.hpp"
#include "tools/analyzer/problem/liveness.hpp"
#include "tools/analyzer/problem/planned_step.hpp"
#include "tools/analyzer/problem/slack_tree.hpp"
#include "tools/baselines/link_time.hpp"
#include "tools/baselines/offloader.hpp"

namespace ho::analyzer::detail {

namespace {

/// Nothing needs the value any more. One that outlives the step is needed until it is overwritten.
bool is_lost(const Gap& gap) { return gap.dead && !gap.wraps; }

/// Positions of a gap that are sampled to weigh it; longer gaps are sampled evenly.
constexpr std::int64_t kLooks = 512;
constexpr unsigned kLanes = kChannelCount / 2;

class Greedy {
 public:
  Greedy(const schedule::Schedule& schedule, const ChannelLinks& links, const Hardware& hardware,
         GreedyLink link);
  Migrations run(GreedyTier tier);

 private:
  /// A gap that is used: off the device in positions (gone_after, back_at).
  struct Move {
    std::uint32_t gap = 0;
    std::uint8_t tier = 0;  ///< 0, 1, 2: local DDR, remote DDR, flash
    std::int64_t gone_after = 0;
    std::int64_t back_at = 0;
  };
  [[nodiscard]] std::int64_t bytes(const Gap& g) const {
    return static_cast<std::int64_t>(life_.bytes[g.storage]);
  }
  [[nodiscard]] std::int64_t wrapped(std::int64_t p) const { return ((p % n_) + n_) % n_; }
  template <typename Tree>
  static void add(Tree& tree, std::int64_t n, std::int64_t first, std::int64_t last,
                  std::int64_t delta);
  [[nodiscard]] std::int64_t least(const SlackTree& tree, std::int64_t first,
                                   std::int64_t last) const;
  [[nodiscard]] double benefit(const Gap& g) const;
  [[nodiscard]] std::optional<Move> place(std::uint32_t index, std::uint8_t tier);
  void supply_inputs();
  void leave(std::uint32_t index, const std::vector<std::uint8_t>& order);
  void prefetch_eagerly();

  const ChannelLinks& links_;
  GreedyLink link_;
  Lifetimes life_;
  std::int64_t n_;
  std::vector<std::int64_t> duration_ns_;
  SlackTree slack_;
  std::vector<SlackTree> room_;  ///< per tier
  std::vector<LinkTime> read_;
  std::vector<LinkTime> write_;
  std::vector<Move> moves_;
};

std::vector<std::int64_t> durations_of(const schedule::Schedule& schedule) {
  std::vector<std::int64_t> out;
  for (const auto& at : schedule.positions) {
    out.push_back(static_cast<std::int64_t>(schedule.ops[at.op.value()].duration_ns));
  }
  return out;
}

std::vector<std::int64_t> slack_of(const Lifetimes& life, std::uint64_t budget_bytes) {
  std::vector<std::int64_t> out;
  for (const std::uint64_t live : life.live) {
    out.push_back(static_cast<std::int64_t>(budget_bytes) - static_cast<std::int64_t>(live));
  }
  return out;
}

Greedy::Greedy(const schedule::Schedule& schedule, const ChannelLinks& links,
               const Hardware& hardware, GreedyLink link)
    : links_(links),
      link_(link),
      life_(lifetimes_of(refined_graph(schedule), 1)),
      n_(life_.positions),
      duration_ns_(durations_of(schedule)),
      slack_(slack_of(life_, schedule.device_budget_bytes)) {
  std::vector<std::int64_t> slots(duration_ns_.size() * 2, 0);
  for (std::size_t p = 0; p < duration_ns_.size(); ++p) slots[2 * p + 1] = duration_ns_[p];
  const std::optional<TierSpec>* const tiers[kLanes] = {&hardware.local_ddr, &hardware.remote_ddr,
                                                        &hardware.flash};
  for (const auto* tier : tiers) {
    const std::uint64_t capacity = *tier ? (*tier)->capacity_bytes : 0;
    room_.emplace_back(
        std::vector<std::int64_t>(life_.positions, static_cast<std::int64_t>(capacity)));
    read_.emplace_back(slots);
    write_.emplace_back(slots);
  }
}

/// Adds to positions [first, last], at most one cycle, counted cyclically.
template <typename Tree>
void Greedy::add(Tree& tree, std::int64_t n, std::int64_t first, std::int64_t last,
                 std::int64_t delta) {
  if (first > last) return;
  HO_CHECK(last - first < n);
  const std::int64_t begin = ((first % n) + n) % n;
  const std::int64_t end = begin + (last - first);
  tree.add(begin, std::min(end, n - 1), delta);
  if (end >= n) tree.add(0, end - n, delta);
}

std::int64_t Greedy::least(const SlackTree& tree, std::int64_t first, std::int64_t last) const {
  if (first > last) return INT64_MAX;
  const std::int64_t begin = wrapped(first);
  const std::int64_t end = begin + (last - first);
  const std::int64_t here = tree.min(begin, std::min(end, n_ - 1));
  return end < n_ ? here : std::min(here, tree.min(0, end - n_));
}

/// Byte-seconds above the budget that the gap would relieve, per byte of transfer.
double Greedy::benefit(const Gap& g) const {
  const std::int64_t first = g.from + 1;
  const std::int64_t length = g.to - first;
  const std::int64_t stride = std::max<std::int64_t>(1, length / kLooks);
  double relief = 0;
  for (std::int64_t p = first; p < g.to; p += stride) {
    const std::int64_t at = wrapped(p);
    const std::int64_t above = -slack_.min(at, at);
    if (above <= 0) continue;
    const auto time = static_cast<double>(duration_ns_[static_cast<std::size_t>(at)] * stride + 1);
    relief += static_cast<double>(std::min(above, bytes(g))) * time;
  }
  return relief / static_cast<double>(bytes(g)) / (g.version == kHomeVersion ? 1 : 2);
}

/// Finds where a gap's transfers fit on the links of a tier, and books that time.
std::optional<Greedy::Move> Greedy::place(std::uint32_t index, std::uint8_t tier) {
  const Gap& g = life_.gaps[index];
  if (!links_.links[2 * tier]) return std::nullopt;
  if (least(room_[tier], g.from + 1, g.to - 1) < bytes(g)) return std::nullopt;
  Move move{index, tier, g.from, g.to};
  const std::uint64_t size = life_.bytes[g.storage];
  const std::int64_t first = 2 * (g.from + 1);
  const std::int64_t last = 2 * g.to;
  const bool writes = g.version != kHomeVersion && !is_lost(g);
  const auto take_ns = [&](unsigned lane, unsigned direction) {
    return transfer_ns(*links_.links[2U * lane + direction], size);
  };
  // Transfers of flash pass local DDR as well.
  std::vector<unsigned> lanes{tier};
  if (2U * tier == kFlashLane && links_.links[0]) lanes.push_back(0);
  for (const unsigned lane : lanes) {
    if (writes && write_[lane].free_between(first, last) < take_ns(lane, 1)) return std::nullopt;
    if (!g.dead && read_[lane].free_between(first, last) < take_ns(lane, 0)) return std::nullopt;
  }
  std::int64_t stored = first;
  for (const unsigned lane : lanes) {
    if (!writes) break;
    stored = std::max(
        stored,
        write_[lane].book(first, last, take_ns(lane, 1), LinkTime::Slots::kEarliest).last_slot);
    move.gone_after = std::min(stored / 2, g.to - 1);
  }
  const bool fetches = !g.dead && std::all_of(lanes.begin(), lanes.end(), [&](unsigned lane) {
    return read_[lane].free_between(stored, last) >= take_ns(lane, 0);
  });
  for (const unsigned lane : lanes) {
    if (!fetches) break;
    const auto booked = read_[lane].book(stored, last, take_ns(lane, 0), LinkTime::Slots::kLatest);
    move.back_at = std::min(move.back_at, std::max(booked.first_slot / 2, move.gone_after + 1));
  }
  return move;
}

/// Inputs of the job arrive from home just in time.
void Greedy::supply_inputs() {
  for (std::uint32_t i = 0; i < life_.gaps.size(); ++i) {
    const Gap& g = life_.gaps[i];
    if (!g.mandatory || !g.movable) continue;
    moves_.push_back({i, 0, -1, g.to});
    add(slack_, n_, 0, g.to - 1, bytes(g));
  }
}

void Greedy::leave(std::uint32_t index, const std::vector<std::uint8_t>& order) {
  const Gap& g = life_.gaps[index];
  std::optional<Move> move;
  for (const std::uint8_t tier : order) {
    if (!move) move = place(index, tier);
  }
  if (!move && link_ == GreedyLink::kOverbooked) {
    for (const std::uint8_t tier : order) {
      const bool has_room = links_.links[2U * tier].has_value() &&
                            least(room_[tier], g.from + 1, g.to - 1) >= bytes(g);
      if (!move && has_room) move = Move{index, tier, g.from, g.to};
    }
  }
  if (!move) return;
  add(room_[move->tier], n_, g.from + 1, g.to - 1, -bytes(g));
  add(slack_, n_, move->gone_after + 1, move->back_at - 1, bytes(g));
  moves_.push_back(*move);
}

/// In order of their latest times: each fetch as early as memory has room until its use.
void Greedy::prefetch_eagerly() {
  std::stable_sort(moves_.begin(), moves_.end(),
                   [](const Move& a, const Move& b) { return a.back_at < b.back_at; });
  for (Move& move : moves_) {
    const Gap& g = life_.gaps[move.gap];
    if (g.dead) continue;
    while (move.back_at > move.gone_after + 1) {
      // Within one cycle at a time: the tree does not wrap.
      const std::int64_t last = wrapped(move.back_at - 1);
      const std::int64_t lap = move.back_at - 1 - last;
      const std::int64_t first = std::max<std::int64_t>(0, move.gone_after + 1 - lap);
      const std::int64_t blocked = slack_.last_below(first, last, bytes(g));
      const std::int64_t from = blocked + 1;
      if (from <= last) slack_.add(from, last, -bytes(g));
      move.back_at = from + lap;
      if (from > first || from > 0) break;
    }
  }
}

Migrations Greedy::run(GreedyTier tier) {
  const std::vector<std::uint8_t> order = tier == GreedyTier::kDdrFirst
                                              ? std::vector<std::uint8_t>{0, 1, 2}
                                              : std::vector<std::uint8_t>{2, 0, 1};
  supply_inputs();
  std::priority_queue<std::pair<double, std::uint32_t>> heap;
  const auto weigh = [&](std::uint32_t i) {
    const double worth = benefit(life_.gaps[i]);
    if (worth > 0) heap.emplace(worth, i);
  };
  for (std::uint32_t i = 0; i < life_.gaps.size(); ++i) {
    const Gap& g = life_.gaps[i];
    if (g.movable && !g.mandatory) weigh(i);
  }
  // Relief only decreases as others leave, so a value that is still the largest is exact.
  while (!heap.empty()) {
    const auto [was, index] = heap.top();
    heap.pop();
    const double worth = benefit(life_.gaps[index]);
    if (worth <= 0) continue;
    if (!heap.empty() && std::pair(worth, index) < heap.top()) {
      heap.emplace(worth, index);
      continue;
    }
    leave(index, order);
  }
  prefetch_eagerly();
  Migrations out;
  out.leaves.resize(life_.positions);
  out.fetches.resize(life_.positions);
  for (const Move& move : moves_) {
    const Gap& g = life_.gaps[move.gap];
    if (!g.mandatory) {
      const auto lane = static_cast<std::uint8_t>(2 * move.tier);
      out.leaves[static_cast<std::size_t>(g.from)].push_back({g.storage, lane, is_lost(g)});
    }
    if (!g.dead) out.fetches[static_cast<std::size_t>(wrapped(move.back_at))].push_back(g.storage);
  }
  return out;
}

}  // namespace

Migrations plan_migrations(const schedule::Schedule& schedule, const ChannelLinks& links,
                           const Hardware& hardware, GreedyTier tier, GreedyLink link) {
  return Greedy(schedule, links, hardware, link).run(tier);
}

/// Whether this many bytes are free at `at_ns`.
bool Offloader::room_by(std::uint64_t bytes, std::uint64_t at_ns) {
  if (bytes > room_bytes_) return false;
  if (bytes == 0) return true;
  std::uint64_t soon = 0;
  std::vector<Room> looked;
  while (soon < bytes && !room_.empty() && room_.top().from_ns <= at_ns) {
    soon += room_.top().bytes;
    looked.push_back(room_.top());
    room_.pop();
  }
  // Merges the bytes that are already free, so that later calls stay cheap.
  std::uint64_t free_bytes = 0;
  for (const Room& room : looked) {
    if (room.from_ns <= op_start_ns_) {
      free_bytes += room.bytes;
    } else {
      room_.push(room);
    }
  }
  if (free_bytes > 0) room_.push({op_start_ns_, free_bytes});
  return soon >= bytes;
}

/// Sends the fetches that are due, in order, while there is room before this op ends.
void Offloader::fetch_due(std::uint32_t position) {
  for (const std::uint32_t s : migrations_->fetches[position]) due_.push_back({s, values_[s].uses});
  while (!due_.empty()) {
    const auto [s, uses] = due_.front();
    const Value& value = values_[s];
    if (value.uses == uses && value.exists && !value.resident) {
      if (!room_by(storage(s).bytes, clock_ns_)) return;
      HO_CHECK(bring({StorageIndex(s), schedule::Access::kRead, 0}, op_start_ns_, false));
    }
    due_.pop_front();
  }
}

void Offloader::leave(std::uint32_t position) {
  for (const auto& each : migrations_->leaves[position]) {
    Value& value = values_[each.storage];
    if (!value.resident) continue;
    if (each.dead) value.dirty = false;
    if (value.dirty) lane_[each.storage] = each.lane;
    drop(each.storage, clock_ns_);
  }
}

void Offloader::step_by_migrations() {
  const auto positions = static_cast<std::uint32_t>(schedule_.positions.size());
  for (std::uint32_t p = 0; p < positions; ++p) {
    ++stamp_;
    keep(p);
    for (const auto& operand : schedule_.positions[p].operands) {
      HO_CHECK(bring(operand, clock_ns_, true));
    }
    run_op(p);
    fetch_due(p);
    leave(p);
    free_dead(p);
  }
}

}  // namespace ho::analyzer::detail
