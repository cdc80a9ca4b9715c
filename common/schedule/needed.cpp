#include "common/schedule/needed.hpp"

#include <cstddef>
#include <unordered_set>

#include "common/base/check.hpp"

namespace ho::schedule {
namespace {

/// Rounds of propagation. Chains of cache ops are short (store, detach, prefetch). Urgency is only
/// a preference, so a cache op in a longer chain merely counts as less urgent.
constexpr int kRounds = 4;

bool takes_away(const CacheOp& op) {
  return op.kind == CacheOpKind::kStore || op.kind == CacheOpKind::kStageOut;
}

}  // namespace

std::vector<std::uint64_t> needed_positions(std::span<const CacheOp> list,
                                            std::uint64_t positions) {
  std::vector<std::uint64_t> needed(list.size(), kNeverNeeded);
  for (std::size_t i = 0; i < list.size(); ++i) {
    const CacheOp& op = list[i];
    if (!op.before_position) continue;
    HO_CHECK(op.before_position->value() < positions);
    needed[i] = op.before_position->value() + (op.before_next_step ? positions : 0);
  }
  bool changed = true;
  for (int round = 0; round < kRounds && changed; ++round) {
    changed = false;
    for (std::size_t i = list.size(); i-- > 0;) {
      if (needed[i] == kNeverNeeded) continue;
      for (const CacheOpRef& ref : list[i].after_cache_ops) {
        const std::uint64_t through = needed[i] + (ref.previous_step ? positions : 0);
        HO_CHECK(ref.op.value() < needed.size());
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
  // Whether the cache op moves bytes away from the device side, or a cache op that waits for it
  // does.
  std::vector<std::uint8_t> feeds(list.size(), 0);
  std::vector<std::uint32_t> found;
  const auto add = [&](std::uint32_t op) {
    HO_CHECK(op < feeds.size());
    if (feeds[op] == 0) found.push_back(op);
    feeds[op] = 1;
  };
  for (std::uint32_t i = 0; i < list.size(); ++i) {
    if (takes_away(list[i])) add(i);
  }
  while (!found.empty()) {
    const CacheOp& op = list[found.back()];
    found.pop_back();
    for (const CacheOpRef& ref : op.after_cache_ops) {
      if (!ref.previous_step) add(ref.op.value());
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
