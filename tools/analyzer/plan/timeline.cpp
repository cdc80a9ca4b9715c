#include "tools/analyzer/plan/timeline.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <queue>
#include <tuple>
#include <utility>

#include "common/base/buckets.hpp"
#include "common/base/check.hpp"
#include "common/model/links.hpp"
#include "tools/analyzer/problem/problem.hpp"

namespace ho::analyzer {
namespace {

using schedule::CacheOp;
using schedule::CacheOpKind;

constexpr std::size_t kSteps = 4;
constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

class Replay {
 public:
  Replay(const Draft& draft, const Problem& input, const std::optional<PlanTier>& flash)
      : draft_(draft),
        in_(input),
        flash_(flash),
        n_(input.lifetimes.positions),
        detaches_(2 * (input.tiers.size() + 1)) {
    const std::size_t count = draft_.cache_ops.size();
    missing_.assign(count * kSteps, 0);
    waits_.assign(std::size_t{n_} * (kSteps + 1), 0);
    free_.assign(detaches_, 0);
    lanes_.resize(detaches_ + 1);
    takes_.reserve(count);
    std::vector<std::pair<std::uint32_t, std::uint32_t>> after;
    std::vector<std::pair<std::uint32_t, std::uint32_t>> edges;
    after.reserve(count);
    for (std::uint32_t c = 0; c < count; ++c) {
      const CacheOp& op = draft_.cache_ops[c];
      takes_.push_back(takes(op));
      after.emplace_back(op.after_position ? op.after_position->value() + 1 : 0, c);
      std::int32_t earlier = 0;  // cache ops of the step before that it waits for
      for (const auto& ref : op.after_cache_ops) {
        edges.emplace_back(ref.op.value(), c << 1U | (ref.previous_step ? 1U : 0U));
        earlier += ref.previous_step ? 1 : 0;
      }
      const auto all = static_cast<std::int32_t>(op.after_cache_ops.size()) + 1;
      for (std::size_t k = 0; k < kSteps; ++k) {
        missing_[k * count + c] = all - (k == 0 ? earlier : 0);
        if (op.before_position) ++waits_[blocked_op(op, k)];
      }
    }
    after_op_ = Buckets(std::size_t{n_} + 1, after);
    unlocks_ = Buckets(count, edges);
  }

  std::int64_t run(std::vector<std::int64_t>* stall_ns) {
    if (stall_ns != nullptr) stall_ns->assign(n_, 0);
    start_prologue();
    std::array<std::int64_t, kSteps + 1> step_end{};
    std::int64_t now = 0;
    for (std::size_t k = 0; k < kSteps; ++k) {
      passed(k, 0, now);
      for (std::uint32_t p = 0; p < n_; ++p) {
        const std::int64_t before = now;
        now = run_op(k, p, now);
        if (stall_ns != nullptr) (*stall_ns)[p] = now - before - in_.duration_ns[p];
        passed(k, p + 1, now);
      }
      step_end[k + 1] = now;
    }
    return step_end[kSteps] - step_end[kSteps - 1];
  }

 private:
  struct Event {
    std::int64_t at;
    std::uint64_t order;
    std::uint32_t cache_op;
    std::uint32_t step;
  };
  static constexpr std::uint32_t kPrologue = UINT32_MAX;

  /// The lane that serves a cache op, and for how long.
  struct Service {
    std::size_t lane = 0;
    std::int64_t time_ns = 0;
  };
  [[nodiscard]] Service takes(const CacheOp& op) const {
    if (op.kind == CacheOpKind::kDetach) return {detaches_, 0};
    const bool stages = op.kind == CacheOpKind::kStageIn || op.kind == CacheOpKind::kStageOut;
    const bool reads = op.kind == CacheOpKind::kPrefetch || op.kind == CacheOpKind::kStageIn;
    const std::size_t home = op.copy == 0 ? in_.tier_of[op.storage.value()] : in_.tiers.size() - 1;
    const std::size_t tier = stages ? in_.tiers.size() : home;
    const PlanTier& links = stages ? *flash_ : in_.tiers[tier];
    return {2 * tier + (reads ? 0 : 1),
            transfer_ns(reads ? links.read : links.write, op.range_end_bytes)};
  }

  [[nodiscard]] std::size_t blocked_op(const CacheOp& op, std::size_t step) const {
    return (step + (op.before_next_step ? 1 : 0)) * n_ + op.before_position->value();
  }

  /// The prologue only waits for its own earlier entries.
  void start_prologue() {
    std::vector<std::int64_t> end(draft_.prologue.size(), 0);
    for (std::uint32_t i = 0; i < draft_.prologue.size(); ++i) {
      const CacheOp& op = draft_.prologue[i];
      ++waits_[op.before_position->value()];
      std::int64_t start = 0;
      for (const auto& ref : op.after_cache_ops) start = std::max(start, end[ref.op.value()]);
      end[i] = submit(takes(op), i, kPrologue, start);
    }
  }

  /// Time never goes back, so each lane completes in order of submission. @return when it does.
  std::int64_t submit(const Service& service, std::uint32_t index, std::uint32_t step,
                      std::int64_t now) {
    std::int64_t done = now;
    if (service.lane != detaches_) {
      std::int64_t& free = free_[service.lane];
      done = free = std::max(free, now) + service.time_ns;
    }
    auto& lane = lanes_[service.lane];
    HO_CHECK(lane.empty() || lane.back().at <= done);
    lane.push({done, order_++, index, step});
    // One with the same time was submitted before.
    if (done < next_at_) {
      next_at_ = done;
      next_lane_ = service.lane;
    }
    return done;
  }

  void unlock(std::uint32_t cache_op, std::size_t step, std::int64_t now) {
    if (step >= kSteps) return;
    std::int32_t& missing = missing_[step * draft_.cache_ops.size() + cache_op];
    HO_CHECK(missing > 0);
    if (--missing == 0) {
      submit(takes_[cache_op], cache_op, static_cast<std::uint32_t>(step), now);
    }
  }

  /// Submits the cache ops that wait for the end of position `ended - 1` (0: the step's begin).
  void passed(std::size_t step, std::uint32_t ended, std::int64_t now) {
    for (const auto* c = after_op_.begin(ended); c != after_op_.end(ended); ++c) {
      unlock(*c, step, now);
    }
  }

  void complete(const Event& event) {
    if (event.step == kPrologue) {
      --waits_[draft_.prologue[event.cache_op].before_position->value()];
      return;
    }
    const CacheOp& op = draft_.cache_ops[event.cache_op];
    if (op.before_position) --waits_[blocked_op(op, event.step)];
    const std::uint32_t done = event.cache_op;
    for (const auto* edge = unlocks_.begin(done); edge != unlocks_.end(done); ++edge) {
      unlock(*edge >> 1U, event.step + (*edge & 1U), event.at);
    }
  }

  /// Completes everything up to the op's end. @return when it ends.
  std::int64_t run_op(std::size_t step, std::uint32_t p, std::int64_t now) {
    while (next_at_ <= now) pop();
    while (waits_[step * n_ + p] > 0) {
      HO_CHECK(next_at_ != kNever);  // else the draft deadlocks
      now = std::max(now, next_at_);
      pop();
    }
    const std::int64_t end = now + in_.duration_ns[p];
    while (next_at_ < end) pop();
    return end;
  }

  void pop() {
    auto& lane = lanes_[next_lane_];
    const Event event = lane.front();
    lane.pop();
    find_next();
    complete(event);
  }

  /// The lane whose foremost completes first; of equal ones that submitted first.
  void find_next() {
    next_at_ = kNever;
    std::uint64_t order = 0;
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
      if (lanes_[lane].empty()) continue;
      const Event& event = lanes_[lane].front();
      if (std::tie(event.at, event.order) >= std::tie(next_at_, order)) continue;
      next_at_ = event.at;
      order = event.order;
      next_lane_ = lane;
    }
  }

  const Draft& draft_;
  const Problem& in_;
  const std::optional<PlanTier>& flash_;
  std::uint32_t n_;
  std::size_t detaches_;  ///< their lane; before it two of each tier, then of flash: read, write
  Buckets after_op_;      ///< position + 1, or 0: the step's begin -> cache ops
  Buckets unlocks_;       ///< cache op -> (who waits for it << 1 | in the next step)
  std::vector<Service> takes_;
  std::vector<std::int32_t> missing_;
  std::vector<std::int32_t> waits_;
  std::vector<std::int64_t> free_;        ///< per lane: when it has served all
  std::vector<std::queue<Event>> lanes_;  ///< what they serve
  std::uint64_t order_ = 0;
  std::int64_t next_at_ = kNever;  ///< when the next of all completes, and where
  std::size_t next_lane_ = 0;
};

}  // namespace

std::int64_t steady_step_ns(const Draft& draft, const Problem& input,
                            const std::optional<PlanTier>& flash,
                            std::vector<std::int64_t>* stall_ns) {
  return Replay(draft, input, flash).run(stall_ns);
}

}  // namespace ho::analyzer
