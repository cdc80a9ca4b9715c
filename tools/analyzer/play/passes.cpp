#include "tools/analyzer/play/passes.hpp"

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "tools/analyzer/problem/channels.hpp"

namespace ho::analyzer {
namespace {

/// A wait of the step below this share of its compute time is not worth a change.
constexpr std::int64_t kSmallShare = 1000;

/// Whether any gap of its value left, per gap.
std::vector<std::uint8_t> whole_values(const Lifetimes& life, const PlayedStep& step,
                                       const std::vector<std::uint8_t>& left) {
  std::vector<std::uint8_t> value_left(life.versions, 0);
  for (std::size_t g = 0; g < life.gaps.size(); ++g) {
    if (left[g] && life.gaps[g].version != kHomeVersion) value_left[life.gaps[g].version] = 1;
  }
  std::vector<std::uint8_t> out = step.candidates;
  for (std::size_t g = 0; g < life.gaps.size(); ++g) {
    const std::uint32_t version = life.gaps[g].version;
    if (version != kHomeVersion && !value_left[version]) out[g] = 0;
  }
  return out;
}

/// Finds ranges of positions in which write-backs queue and ops wait for room. Per position of one:
/// the last op that waits so; -1 elsewhere. A value that returns before that op has made no room
/// that counted.
std::vector<std::int64_t> stretches(const PlayedStep& step, const Played& pass) {
  constexpr int kQuiet = 8;  // so many positions without either end a range
  const auto n = static_cast<std::int64_t>(pass.waits_for_room.size());
  const auto waits = [&](std::int64_t p) {
    const auto i = static_cast<std::size_t>(p);
    return pass.choice.stall_ns[i] > 0 && pass.waits_for_room[i] != 0;
  };
  const auto busy = [&](std::int64_t p) {
    return waits(p) || pass.writes_wait[static_cast<std::size_t>(p)] != 0;
  };
  std::vector<std::int64_t> out(static_cast<std::size_t>(n), -1);
  for (std::int64_t p = 0; p < n;) {
    if (!busy(p)) {
      ++p;
      continue;
    }
    std::int64_t last = -1;
    std::int64_t stalled_ns = 0;
    std::int64_t q = p;
    for (int quiet = 0; q < n && quiet < kQuiet; ++q) {
      quiet = busy(q) ? 0 : quiet + 1;
      if (!waits(q)) continue;
      last = q;
      stalled_ns += pass.choice.stall_ns[static_cast<std::size_t>(q)];
    }
    if (stalled_ns > step.begin_ns.back() / kSmallShare) {
      for (std::int64_t k = p; k <= last; ++k) out[static_cast<std::size_t>(k)] = last;
    }
    p = q;
  }
  return out;
}

/// Takes from `leaves` the gaps that lie wholly inside such a range, because their write-back only
/// made others wait. The shortest first, if room allows.
void stay_in_stretches(const Lifetimes& life, const PlayedStep& step, const Played& pass,
                       std::int64_t target, std::vector<std::uint8_t>& leaves) {
  const std::vector<std::int64_t> last_wait = stretches(step, pass);
  std::vector<std::uint32_t> order;
  const auto n = static_cast<std::int64_t>(life.positions);
  for (std::uint32_t g = 0; g < life.gaps.size(); ++g) {
    const Gap& gap = life.gaps[g];
    if (!leaves[g] || gap.version == kHomeVersion || gap.to >= n) continue;
    if (gap.to <= last_wait[static_cast<std::size_t>(gap.from)]) order.push_back(g);
  }
  if (order.empty()) return;
  const auto lasts_ns = [&](std::uint32_t g) {
    return step.begin_ns[static_cast<std::size_t>(life.gaps[g].to)] -
           step.begin_ns[static_cast<std::size_t>(life.gaps[g].from) + 1];
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return lasts_ns(a) < lasts_ns(b); });
  SlackTree room(room_beside(target, least_resident(life, leaves)));
  for (const std::uint32_t g : order) {
    const Gap& gap = life.gaps[g];
    const auto bytes = static_cast<std::int64_t>(life.bytes[gap.storage]);
    if (room.min(gap.from + 1, gap.to - 1) < bytes) continue;
    room.add(gap.from + 1, gap.to - 1, -bytes);
    leaves[g] = 0;
  }
}

}  // namespace

std::optional<Played> play_in_passes(const ChooseInput& input, const PlayedStep& step,
                                     const PassOptions& options) {
  const Lifetimes& life = input.lifetimes;
  std::vector<std::uint8_t> leaves = step.candidates;
  const auto apply_rules = [&] {
    if (options.rules == nullptr) return;
    for (std::size_t g = 0; g < leaves.size(); ++g) {
      const GapRule rule = (*options.rules)[g];
      if (rule != GapRule::kFree) leaves[g] = rule == GapRule::kLeaves ? 1 : 0;
    }
  };
  apply_rules();
  std::vector<std::int64_t> lead;
  std::vector<std::int64_t> need;
  if (options.latest_starts) {
    lead = latest_starts(input, step, std::vector<std::uint8_t>(life.gaps.size(), 0));
  }
  std::optional<Played> best;
  std::int64_t last_ns = 0;
  for (int i = 0; i < options.passes_max; ++i) {
    auto pass =
        play(input, step, {options.target_bytes, options.steps, leaves, lead, need, options.rules});
    if (!pass) break;
    const std::int64_t change_ns = std::abs(pass->step_ns - last_ns);
    last_ns = pass->step_ns;
    const bool settled = change_ns < last_ns / 1'000'000;
    const bool close = last_ns <= step.begin_ns.back() + step.begin_ns.back() / 2000;
    lead = latest_starts(input, step, pass->left);
    need = pass->need_bytes;
    leaves = options.whole_values ? whole_values(life, step, pass->left) : pass->left;
    stay_in_stretches(life, step, *pass, static_cast<std::int64_t>(options.target_bytes), leaves);
    apply_rules();
    if (!best || last_ns < best->step_ns) best = std::move(pass);
    if (settled || close) break;
  }
  return best;
}

}  // namespace ho::analyzer
