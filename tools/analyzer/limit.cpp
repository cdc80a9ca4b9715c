#include "tools/analyzer/limit.hpp"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "common/base/units.hpp"
#include "tools/analyzer/lower_bound.hpp"
#include "tools/analyzer/problem/planned_step.hpp"

namespace ho::analyzer {
namespace {

using schedule::HomeTier;
using schedule::Schedule;

/// A plan that stalls for more than this part of its step does not wait for its ops alone.
constexpr std::uint64_t kStallPart = 100;

using Span = std::pair<std::uint64_t, std::uint64_t>;

/// How long any of the channels is busy between from_ns and to_ns, at most one step later. The
/// steady state repeats: a transfer that ends after its step is busy in the next one.
std::uint64_t busy_ns(const Schedule& plan, const std::vector<HomeTier>& tiers, bool toward_device,
                      const Span& window) {
  const std::uint64_t step_ns = plan.prediction.step_ns;
  std::vector<Span> spans;
  for (const schedule::CacheOp& op : plan.cache_ops) {
    if (op.kind == schedule::CacheOpKind::kDetach) continue;
    if (schedule::moves_toward_device(op.kind) != toward_device) continue;
    const HomeTier tier = schedule::transfer_tier(plan, op);
    if (std::find(tiers.begin(), tiers.end(), tier) == tiers.end()) continue;
    const std::uint64_t length_ns = op.end_ns - op.start_ns;
    // The occurrences that may overlap the window begin less than a step before it.
    for (std::uint64_t start_ns = op.start_ns % step_ns; start_ns < window.second + step_ns;
         start_ns += step_ns) {
      // Times are one step later than in the window, so that none is negative.
      const std::uint64_t first_ns = std::max(start_ns, window.first + step_ns);
      const std::uint64_t last_ns = std::min(start_ns + length_ns, window.second + step_ns);
      if (first_ns < last_ns) spans.emplace_back(first_ns, last_ns);
    }
  }
  std::sort(spans.begin(), spans.end());
  std::uint64_t busy = 0;
  std::uint64_t until_ns = 0;
  for (const auto& [first_ns, last_ns] : spans) {
    if (last_ns <= until_ns) continue;
    busy += last_ns - std::max(first_ns, until_ns);
    until_ns = last_ns;
  }
  return busy;
}

/// The stretch from the start of `from` to the start of `to`; a write-back may begin once `from`
/// has ended.
Span times_of(const Schedule& plan, const LowerBound& bound) {
  const auto count = static_cast<std::uint32_t>(plan.positions.size());
  const auto start_ns = [&](std::uint32_t position) {
    return plan.prediction.op_start_ns[position % count] +
           position / count * plan.prediction.step_ns;
  };
  if (bound.to - bound.from == count) return {0, plan.prediction.step_ns};
  const std::uint64_t op_ns = plan.ops[plan.positions[bound.from].op.value()].duration_ns;
  return {start_ns(bound.from) + (bound.toward_device ? 0 : op_ns), start_ns(bound.to)};
}

}  // namespace

std::optional<Limit> limit_of(const Schedule& plan) {
  const schedule::Prediction& predicted = plan.prediction;
  if (predicted.step_ns == 0 || predicted.op_start_ns.size() != plan.positions.size()) {
    return std::nullopt;
  }
  const auto bound = lower_bound(refined_graph(plan), plan.hardware, plan.device_budget_bytes);
  const Span window = bound.tiers.empty() ? Span(0, predicted.step_ns) : times_of(plan, bound);
  // Times from a file may contradict one another.
  if (window.first >= window.second || window.second / 2 > predicted.step_ns) return std::nullopt;
  const auto length_ns = static_cast<double>(window.second - window.first);
  if (bound.tiers.empty()) {
    if (predicted.stall_ns > predicted.step_ns / kStallPart) return std::nullopt;
    return Limit{"compute", static_cast<double>(predicted.compute_ns) / length_ns, window.first,
                 window.second};
  }
  const std::string way = bound.toward_device ? ".read" : ".write";
  const auto share = [&](const std::vector<HomeTier>& tiers) {
    return static_cast<double>(busy_ns(plan, tiers, bound.toward_device, window)) / length_ns;
  };
  if (bound.by_port) {
    return Limit{"device_port" + way, share(bound.tiers), window.first, window.second};
  }
  Limit out{"", -1, window.first, window.second};
  for (const HomeTier tier : bound.tiers) {
    const double busy = share({tier});
    if (busy <= out.busy) continue;
    out.name = std::string(schedule::home_tier_name(tier)) + way;
    out.busy = busy;
  }
  return out;
}

std::string describe(const Limit& limit, std::uint64_t step_ns) {
  const std::string busy =
      limit.name + ", " + std::to_string(std::lround(100 * limit.busy)) + " % busy ";
  if (limit.to_ns - limit.from_ns == step_ns) return busy + "all step long";
  const std::string from = busy + "from " + format_duration_ns(limit.from_ns) + " to ";
  return limit.to_ns <= step_ns
             ? from + format_duration_ns(limit.to_ns)
             : from + format_duration_ns(limit.to_ns - step_ns) + " of the next step";
}

}  // namespace ho::analyzer
