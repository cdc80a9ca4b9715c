#include "common/schedule/needed.hpp"

#include <cstddef>

namespace ho::schedule {
namespace {

/// Rounds of propagation. Chains of cache ops are short (store, detach, prefetch); urgency is only
/// a preference, so a longer chain merely ends up less urgent.
constexpr int kRounds = 4;

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

}  // namespace ho::schedule
