#include "tools/analyzer/timeline.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <queue>
#include <tuple>

#include "common/base/check.hpp"
#include "tools/analyzer/channels.hpp"

namespace ho::analyzer {
namespace {

using schedule::CacheOp;
using schedule::CacheOpKind;

constexpr std::size_t kSteps = 4;

class Replay {
 public:
  Replay(const Draft& draft, const ChooseInput& input, const std::optional<PlanTier>& flash)
      : draft_(draft), in_(input), flash_(flash) {
    n_ = in_.lifetimes.positions;
    const std::size_t count = draft_.cache_ops.size();
    after_op_.resize(n_ + 1);
    unlocks_.resize(count);
    missing_.assign(count * kSteps, 0);
    waits_.assign(std::size_t{n_} * (kSteps + 1), 0);
    for (auto& lanes : lane_free_) lanes.assign(in_.tiers.size() + 1, 0);
    for (std::uint32_t c = 0; c < count; ++c) {
      const CacheOp& op = draft_.cache_ops[c];
      after_op_[op.after_position ? op.after_position->value() + 1 : 0].push_back(c);
      for (const auto& ref : op.after_cache_ops) {
        unlocks_[ref.op.value()].push_back({c, ref.previous_step});
      }
      for (std::size_t k = 0; k < kSteps; ++k) {
        std::int32_t missing = 1;
        for (const auto& ref : op.after_cache_ops) missing += ref.previous_step && k == 0 ? 0 : 1;
        missing_[k * count + c] = missing;
        if (op.before_position) ++waits_[blocked_op(op, k)];
      }
    }
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
    bool operator>(const Event& other) const {
      return std::tie(at, order) > std::tie(other.at, other.order);
    }
  };
  static constexpr std::uint32_t kPrologue = UINT32_MAX;

  [[nodiscard]] std::size_t blocked_op(const CacheOp& op, std::size_t step) const {
    return (step + (op.before_next_step ? 1 : 0)) * n_ + op.before_position->value();
  }

  /// The prologue waits for nothing but itself, and only for what stands before in the list.
  void start_prologue() {
    std::vector<std::int64_t> end(draft_.prologue.size(), 0);
    for (std::uint32_t i = 0; i < draft_.prologue.size(); ++i) {
      const CacheOp& op = draft_.prologue[i];
      ++waits_[op.before_position->value()];
      std::int64_t start = 0;
      for (const auto& ref : op.after_cache_ops) start = std::max(start, end[ref.op.value()]);
      end[i] = submit(op, i, kPrologue, start);
    }
  }

  /// @return when it completes.
  std::int64_t submit(const CacheOp& op, std::uint32_t index, std::uint32_t step,
                      std::int64_t now) {
    if (op.kind == CacheOpKind::kDetach) {
      events_.push({now, order_++, index, step});
      return now;
    }
    const bool stages = op.kind == CacheOpKind::kStageIn || op.kind == CacheOpKind::kStageOut;
    const bool reads = op.kind == CacheOpKind::kPrefetch || op.kind == CacheOpKind::kStageIn;
    const std::size_t lane = stages ? in_.tiers.size() : in_.tier_of[op.storage.value()];
    const PlanTier& tier = stages ? *flash_ : in_.tiers[lane];
    const Link& link = reads ? tier.read : tier.write;
    std::int64_t& free = lane_free_[reads ? 0 : 1][lane];
    free = std::max(free, now) + transfer_ns(link, op.range_end_bytes);
    events_.push({free, order_++, index, step});
    return free;
  }

  void unlock(std::uint32_t cache_op, std::size_t step, std::int64_t now) {
    if (step >= kSteps) return;
    std::int32_t& missing = missing_[step * draft_.cache_ops.size() + cache_op];
    HO_CHECK(missing > 0);
    if (--missing == 0) {
      submit(draft_.cache_ops[cache_op], cache_op, static_cast<std::uint32_t>(step), now);
    }
  }

  /// Whatever waits for the end of position `ended - 1` (0: the step's begin).
  void passed(std::size_t step, std::uint32_t ended, std::int64_t now) {
    for (const std::uint32_t c : after_op_[ended]) unlock(c, step, now);
  }

  void complete(const Event& event) {
    if (event.step == kPrologue) {
      --waits_[draft_.prologue[event.cache_op].before_position->value()];
      return;
    }
    const CacheOp& op = draft_.cache_ops[event.cache_op];
    if (op.before_position) --waits_[blocked_op(op, event.step)];
    for (const auto& [next, previous_step] : unlocks_[event.cache_op]) {
      unlock(next, event.step + (previous_step ? 1 : 0), event.at);
    }
  }

  /// Completes everything up to the op's end. @return when it ends.
  std::int64_t run_op(std::size_t step, std::uint32_t p, std::int64_t now) {
    while (!events_.empty() && events_.top().at <= now) pop();
    while (waits_[step * n_ + p] > 0) {
      HO_CHECK(!events_.empty());  // else the draft deadlocks
      now = std::max(now, events_.top().at);
      pop();
    }
    const std::int64_t end = now + in_.duration_ns[p];
    while (!events_.empty() && events_.top().at < end) pop();
    return end;
  }

  void pop() {
    const Event event = events_.top();
    events_.pop();
    complete(event);
  }

  struct Unlock {
    std::uint32_t cache_op;
    bool previous_step;
  };

  const Draft& draft_;
  const ChooseInput& in_;
  const std::optional<PlanTier>& flash_;
  std::uint32_t n_ = 0;
  std::vector<std::vector<std::uint32_t>> after_op_;
  std::vector<std::vector<Unlock>> unlocks_;
  std::vector<std::int32_t> missing_;
  std::vector<std::int32_t> waits_;
  std::array<std::vector<std::int64_t>, 2> lane_free_;  // read, write; per tier, then flash
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::uint64_t order_ = 0;
};

}  // namespace

std::int64_t steady_step_ns(const Draft& draft, const ChooseInput& input,
                            const std::optional<PlanTier>& flash,
                            std::vector<std::int64_t>* stall_ns) {
  return Replay(draft, input, flash).run(stall_ns);
}

}  // namespace ho::analyzer
