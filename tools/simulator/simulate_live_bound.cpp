#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/base/check.hpp"
#include "tools/simulator/simulate.hpp"
#include "tools/simulator/simulate_channels.hpp"

namespace ho::analyzer {

namespace {

using schedule::CacheOp;
using schedule::CacheOpKind;
using schedule::Schedule;

/// The prologue and two steps: the second is as full as any later one.
constexpr std::uint32_t kSteps = 2;
/// Limit for the ancestors of an early Prefetch; beyond it, it runs at its latest time.
constexpr std::size_t kAncestorsMax = 64;
constexpr std::size_t kNoLimit = SIZE_MAX;

/// One execution in which transfers take no time: each cache op happens when this policy decides,
/// in an order that the dependencies allow.
class LazyExecution {
 public:
  explicit LazyExecution(const Schedule& schedule)
      : schedule_(schedule),
        last_access_(detail::last_access(schedule)),
        live_(schedule.storages.size(), 0) {
    const auto positions = schedule.positions.size();
    by_after_.resize(positions + 1);
    by_before_.resize(positions);
    for (std::uint32_t i = 0; i < schedule.cache_ops.size(); ++i) {
      const CacheOp& op = schedule.cache_ops[i];
      by_after_[op.after_position ? op.after_position->value() : positions].push_back(i);
      if (op.before_position) by_before_[op.before_position->value()].push_back(i);
    }
    done_.assign(kSteps, std::vector<std::uint8_t>(schedule.cache_ops.size(), 0));
    enabled_ = done_;
    visited_.assign(kSteps, std::vector<std::uint64_t>(schedule.cache_ops.size(), 0));
  }

  std::uint64_t run() {
    for (const CacheOp& op : schedule_.prologue) {
      if (op.kind == CacheOpKind::kPrefetch) set_live(op.storage.value(), true);
    }
    const auto positions = static_cast<std::uint32_t>(schedule_.positions.size());
    for (std::uint32_t step = 0; step < kSteps; ++step) {
      enable(step, by_after_[positions]);
      for (std::uint32_t p = 0; p < positions; ++p) run_position(step, p);
    }
    return peak_bytes_;
  }

 private:
  struct Node {
    std::uint32_t step = 0;
    std::uint32_t index = 0;
  };
  struct Visit {
    Node node;
    bool expanded = false;  ///< its ancestors are already in the order
  };

  void set_live(std::size_t storage, bool live) {
    if ((live_[storage] != 0) == live) return;
    live_[storage] = live ? 1 : 0;
    const std::uint64_t bytes = schedule_.storages[storage].bytes;
    live_bytes_ = live ? live_bytes_ + bytes : live_bytes_ - bytes;
    peak_bytes_ = std::max(peak_bytes_, live_bytes_);
  }

  /// Collects what must happen before `node` and has not yet: ancestors first, `node` last. @return
  /// false if one of them may not happen yet, or there are more than `count_max`.
  bool undone(Node node, std::size_t count_max, std::vector<Node>& order) {
    order.clear();
    ++visit_;
    stack_.assign(1, {node, false});
    while (!stack_.empty()) {
      const auto [at, expanded] = stack_.back();
      stack_.pop_back();
      if (expanded) {
        order.push_back(at);
        continue;
      }
      if (done_[at.step][at.index] != 0 || visited_[at.step][at.index] == visit_) continue;
      visited_[at.step][at.index] = visit_;
      if (enabled_[at.step][at.index] == 0 || order.size() + stack_.size() >= count_max) {
        return false;
      }
      stack_.push_back({at, true});
      for (const auto& ref : schedule_.cache_ops[at.index].after_cache_ops) {
        if (ref.previous_step && at.step == 0) continue;
        stack_.push_back({{ref.previous_step ? at.step - 1 : at.step, ref.op.value()}, false});
      }
    }
    return true;
  }

  void apply(const std::vector<Node>& order) {
    for (const Node node : order) {
      if (done_[node.step][node.index] != 0) continue;
      done_[node.step][node.index] = 1;
      const CacheOp& op = schedule_.cache_ops[node.index];
      if (op.kind == CacheOpKind::kPrefetch) set_live(op.storage.value(), true);
      if (op.kind == CacheOpKind::kDetach) set_live(op.storage.value(), false);
    }
  }

  /// An early Prefetch pays if it adds more bytes than the releases it must wait for free.
  void enable(std::uint32_t step, const std::vector<std::uint32_t>& released) {
    for (const std::uint32_t i : released) enabled_[step][i] = 1;
    for (const std::uint32_t i : released) {
      const CacheOpKind kind = schedule_.cache_ops[i].kind;
      if (kind == CacheOpKind::kDetach) continue;
      if (!undone({step, i}, kAncestorsMax, order_)) continue;
      std::uint64_t gained = 0;
      std::uint64_t lost = 0;
      for (const Node node : order_) {
        const CacheOp& op = schedule_.cache_ops[node.index];
        const std::uint64_t bytes = schedule_.storages[op.storage.value()].bytes;
        if (op.kind == CacheOpKind::kPrefetch) gained += bytes;
        if (op.kind == CacheOpKind::kDetach) lost += bytes;
      }
      if (gained > lost || lost == 0) apply(order_);
    }
  }

  void run_position(std::uint32_t step, std::uint32_t p) {
    for (const std::uint32_t i : by_before_[p]) {
      const bool next_step = schedule_.cache_ops[i].before_next_step;
      if (next_step && step == 0) continue;
      const Node node{next_step ? step - 1 : step, i};
      if (undone(node, kNoLimit, order_)) apply(order_);
    }
    for (const auto& operand : schedule_.positions[p].operands) {
      set_live(operand.storage.value(), true);
    }
    for (const auto& operand : schedule_.positions[p].operands) {
      const auto storage = operand.storage.value();
      if (!schedule_.storages[storage].persistent && last_access_[storage] == p) {
        set_live(storage, false);
      }
    }
    enable(step, by_after_[p]);
  }

  const Schedule& schedule_;
  std::vector<std::uint64_t> last_access_;
  std::vector<std::uint8_t> live_;
  std::vector<std::vector<std::uint32_t>> by_after_;
  std::vector<std::vector<std::uint32_t>> by_before_;
  std::vector<std::vector<std::uint8_t>> done_;
  std::vector<std::vector<std::uint8_t>> enabled_;
  std::vector<std::vector<std::uint64_t>> visited_;  ///< the last visit_ that reached it
  std::uint64_t visit_ = 0;
  std::vector<Visit> stack_;
  std::vector<Node> order_;
  std::uint64_t live_bytes_ = 0;
  std::uint64_t peak_bytes_ = 0;
};

}  // namespace

std::uint64_t live_bound_bytes(const Schedule& schedule) {
  if (!detail::check_indices(schedule)) return 0;
  return LazyExecution(schedule).run();
}

}  // namespace ho::analyzer
