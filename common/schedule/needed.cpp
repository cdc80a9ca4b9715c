#include "common/schedule/needed.hpp"

#include <cstddef>
#include <unordered_set>

namespace ho::schedule {
namespace {

/// Rounds of propagation. Chains of cache ops are short (store, detach, prefetch); urgency is only
/// a preference, so a longer chain merely ends up less urgent.
constexpr int kRounds = 4;

bool takes_away(const CacheOp& op) {
  return op.kind == CacheOpKind::kStore || op.kind == CacheOpKind::kStageOut;
}

/// Each op after all that it waits for within the step; ops of a cycle, and behind one, are left
/// out.
std::vector<std::uint32_t> in_order(const std::vector<CacheOp>& list) {
  std::vector<std::uint32_t> waits(list.size(), 0);
  std::vector<std::uint32_t> first(list.size() + 1, 0);
  for (std::size_t i = 0; i < list.size(); ++i) {
    for (const CacheOpRef& ref : list[i].after_cache_ops) {
      if (ref.previous_step) continue;
      ++waits[i];
      ++first[ref.op.value() + 1];
    }
  }
  for (std::size_t i = 0; i < list.size(); ++i) first[i + 1] += first[i];
  std::vector<std::uint32_t> dependents(first.back());
  std::vector<std::uint32_t> fill(first.begin(), first.end() - 1);
  for (std::uint32_t i = 0; i < list.size(); ++i) {
    for (const CacheOpRef& ref : list[i].after_cache_ops) {
      if (!ref.previous_step) dependents[fill[ref.op.value()]++] = i;
    }
  }
  std::vector<std::uint32_t> order;
  order.reserve(list.size());
  for (std::uint32_t i = 0; i < list.size(); ++i) {
    if (waits[i] == 0) order.push_back(i);
  }
  for (std::size_t next = 0; next < order.size(); ++next) {
    for (std::uint32_t d = first[order[next]]; d < first[order[next] + 1]; ++d) {
      if (--waits[dependents[d]] == 0) order.push_back(dependents[d]);
    }
  }
  return order;
}

}  // namespace

std::vector<std::uint64_t> needed_positions(const std::vector<CacheOp>& list,
                                            std::uint64_t positions) {
  std::vector<std::uint64_t> needed(list.size(), kNeverNeeded);
  for (std::size_t i = 0; i < list.size(); ++i) {
    const CacheOp& op = list[i];
    if (!op.before_position) continue;
    needed[i] = op.before_position->value() + (op.before_next_step ? positions : 0);
  }
  bool changed = true;
  for (int round = 0; round < kRounds && changed; ++round) {
    changed = false;
    for (std::size_t i = list.size(); i-- > 0;) {
      if (needed[i] == kNeverNeeded) continue;
      for (const CacheOpRef& ref : list[i].after_cache_ops) {
        const std::uint64_t through = needed[i] + (ref.previous_step ? positions : 0);
        std::uint64_t& before = needed[ref.op.value()];
        if (through >= before) continue;
        before = through;
        changed = true;
      }
    }
  }
  return needed;
}

std::vector<std::uint8_t> droppable_at_end(const Schedule& schedule) {
  const auto& list = schedule.cache_ops;
  std::unordered_set<std::uint32_t> taken_home;
  for (const CacheOp& op : schedule.epilogue) taken_home.insert(op.storage.value());
  // Whether something that waits for the op takes bytes away; whatever lies on a cycle counts.
  std::vector<std::uint8_t> feeds(list.size(), 1);
  const std::vector<std::uint32_t> order = in_order(list);
  for (const std::uint32_t i : order) feeds[i] = takes_away(list[i]) ? 1 : 0;
  for (std::size_t next = order.size(); next-- > 0;) {
    if (feeds[order[next]] == 0) continue;
    for (const CacheOpRef& ref : list[order[next]].after_cache_ops) {
      if (!ref.previous_step) feeds[ref.op.value()] = 1;
    }
  }
  std::vector<std::uint8_t> droppable(list.size(), 0);
  for (std::size_t i = 0; i < list.size(); ++i) {
    droppable[i] = moves_toward_device(list[i].kind) && feeds[i] == 0 &&
                           taken_home.count(list[i].storage.value()) == 0
                       ? 1
                       : 0;
  }
  return droppable;
}

}  // namespace ho::schedule
