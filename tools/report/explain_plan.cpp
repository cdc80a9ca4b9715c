#include "tools/report/explain_plan.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/base/units.hpp"
#include "common/model/check_graph.hpp"
#include "tools/analyzer/explain.hpp"
#include "tools/analyzer/orders/arrange.hpp"
#include "tools/analyzer/problem/liveness.hpp"
#include "tools/analyzer/problem/planned_step.hpp"
#include "tools/analyzer/problem/problem.hpp"
#include "tools/simulator/simulate_channels.hpp"

namespace ho::analyzer {
namespace {

using schedule::Schedule;

constexpr std::uint32_t kNone = UINT32_MAX;

/// Predicted times are sums of times that check_transfers() limits.
constexpr std::uint64_t kStartNsMax = std::uint64_t{1} << 61U;

/// A schedule comes from a file. The functions below rely on these checks.
Result<void> check_plan(const Schedule& plan) {
  if (auto fine = detail::check_indices(plan); !fine) return fine;
  if (auto fine = check_hardware(plan.hardware); !fine) return fine;
  if (auto fine = detail::check_transfers(plan, plan.hardware); !fine) return fine;
  if (plan.align_bytes == 0 || (plan.align_bytes & (plan.align_bytes - 1)) != 0 ||
      plan.align_bytes > (std::uint64_t{1} << 32U)) {
    return bad_input("align_bytes must be a power of two up to 4 GiB");
  }
  if (plan.device_budget_bytes > kBytesMax)
    return bad_input("device_budget_bytes is more than 2^50");
  const auto& starts = plan.prediction.op_start_ns;
  if (!starts.empty() && starts.size() != plan.positions.size()) {
    return bad_input("the schedule must have one predicted time per position");
  }
  const auto late = [](std::uint64_t ns) { return ns > kStartNsMax; };
  if (std::any_of(starts.begin(), starts.end(), late))
    return bad_input("a predicted time is too large");
  return {};
}

/// The predicted wait before each position; zeros without a prediction.
std::vector<std::int64_t> stalls_of(const Schedule& plan) {
  std::vector<std::int64_t> out(plan.positions.size(), 0);
  const auto& starts = plan.prediction.op_start_ns;
  std::uint64_t free_ns = 0;
  for (std::size_t p = 0; p < starts.size(); ++p) {
    if (starts[p] > free_ns) out[p] = static_cast<std::int64_t>(starts[p] - free_ns);
    free_ns = std::max(free_ns, starts[p]) + plan.ops[plan.positions[p].op.value()].duration_ns;
  }
  return out;
}

const schedule::Explanation* told(const Schedule& plan, StorageIndex s) {
  const auto at = std::find_if(plan.explanations.begin(), plan.explanations.end(),
                               [s](const auto& each) { return each.storage == s; });
  return at == plan.explanations.end() ? nullptr : &*at;
}

/// How each position's op left program order, and whether it runs again.
struct Order {
  explicit Order(const Schedule& plan) : shift(plan.positions.size(), OpShift::kNone) {
    OpList list;
    for (const auto& at : plan.positions) list.push_back(at.op);
    kept = analyzer::kept(list);
    std::optional<OpIndex> last;  // the last that kept program order
    for (std::uint32_t p = 0; p < list.size(); ++p) {
      if (kept[p] == Kept::kStays) last = list[p];
      if (kept[p] == Kept::kMoved) shift[p] = last > list[p] ? OpShift::kLater : OpShift::kEarlier;
    }
  }

  std::vector<Kept> kept;
  std::vector<OpShift> shift;
};

/// "name, 4 MiB" of the largest of these storages; empty if there are none.
std::string largest_of(const Schedule& plan, const std::vector<std::uint32_t>& storages) {
  const std::uint32_t* best = nullptr;
  for (const std::uint32_t& s : storages) {
    if (best == nullptr || plan.storages[s].bytes > plan.storages[*best].bytes) best = &s;
  }
  if (best == nullptr) return "";
  const Storage& storage = plan.storages[*best];
  return storage_label(storage.id, storage.name) + " (" + format_bytes(storage.bytes) + ")" +
         (storages.size() > 1 ? " and " + std::to_string(storages.size() - 1) + " more" : "");
}

class Reasons {
 public:
  Reasons(const Schedule& plan, const Order& order, const Lifetimes& life)
      : plan_(plan), order_(order), life_(life) {}

  [[nodiscard]] std::string of(std::uint32_t p) const {
    if (order_.kept[p] == Kept::kAgain) return recomputation(p);
    if (order_.shift[p] == OpShift::kEarlier) return earlier(p);
    if (order_.shift[p] == OpShift::kLater) return later(p);
    return "";
  }

 private:
  [[nodiscard]] std::string op_at(std::uint32_t p) const {
    const auto& op = plan_.ops[plan_.positions[p].op.value()];
    return op_label(op.id, op.name) + " (position " + std::to_string(p) + ")";
  }
  /// The first read of the storage after `p` in the step; kNone if there is none.
  [[nodiscard]] std::uint32_t next_read(std::uint32_t s, std::uint32_t p) const {
    for (const AccessPoint& each : life_.accesses_of(s)) {
      if (each.position > p && each.access != schedule::Access::kWrite) return each.position;
    }
    return kNone;
  }
  /// The op's outputs that a later op of the step reads, and the first of these readers.
  [[nodiscard]] std::pair<std::vector<std::uint32_t>, std::uint32_t> results(
      std::uint32_t p) const {
    std::pair<std::vector<std::uint32_t>, std::uint32_t> out{{}, kNone};
    for (const auto& operand : plan_.positions[p].operands) {
      if (operand.access == schedule::Access::kRead) continue;
      const std::uint32_t reader = next_read(operand.storage.value(), p);
      if (reader == kNone) continue;
      out.first.push_back(operand.storage.value());
      out.second = std::min(out.second, reader);
    }
    return out;
  }

  [[nodiscard]] std::string recomputation(std::uint32_t p) const {
    const auto [made, reader] = results(p);
    if (made.empty()) return "Runs again; no op of the step reads its results.";
    return "Recomputes " + largest_of(plan_, made) + " for " + op_at(reader) + ", in " +
           format_duration_ns(plan_.ops[plan_.positions[p].op.value()].duration_ns) +
           ": until then it takes no memory and no link, and the step is shorter than with a "
           "transfer.";
  }

  [[nodiscard]] std::string earlier(std::uint32_t p) const {
    std::vector<std::uint32_t> done;
    std::vector<std::uint32_t> present;
    for (const auto& operand : plan_.positions[p].operands) {
      const std::uint32_t s = operand.storage.value();
      const Storage& storage = plan_.storages[s];
      if (storage.kind == StorageKind::kWorkspace) continue;
      const auto points = life_.accesses_of(s);
      const bool last = points.back().position == p && points.front().position != p;
      if (last) (storage.persistent ? present : done).push_back(s);
    }
    std::string out = "Runs as soon as its inputs are ready: ";
    if (!done.empty()) return out + largest_of(plan_, done) + " is used there for the last time.";
    if (!present.empty()) {
      return out + largest_of(plan_, present) + " is on the device there, and may leave after it.";
    }
    return out + "its operands are on the device there.";
  }

  [[nodiscard]] std::string later(std::uint32_t p) const {
    const auto [made, reader] = results(p);
    if (made.empty()) return "Runs later than in program order: no op waits for its results.";
    return "Runs shortly before " + op_at(reader) + ", the first op that reads " +
           largest_of(plan_, made) + ", which takes no memory until then.";
  }

  const Schedule& plan_;
  const Order& order_;
  const Lifetimes& life_;
};

}  // namespace

std::string_view op_shift_name(OpShift shift) {
  switch (shift) {
    case OpShift::kNone: return "none";
    case OpShift::kEarlier: return "earlier";
    case OpShift::kLater: return "later";
  }
  return "none";
}

Result<std::vector<schedule::Explanation>> explain_storages(
    const Schedule& plan, const std::vector<StorageIndex>& storages) {
  for (const StorageIndex s : storages) {
    if (s.value() >= plan.storages.size()) return bad_input("the schedule has no such storage");
  }
  std::vector<schedule::Explanation> out;
  bool recorded = true;
  for (const StorageIndex s : storages) {
    const auto* const known = told(plan, s);
    recorded = recorded && known != nullptr;
    out.push_back(known != nullptr ? *known : schedule::Explanation{s, "", "", {}});
  }
  if (recorded) return out;
  if (auto fine = check_plan(plan); !fine) return fine.error();
  const Graph graph = refined_graph(plan);
  if (auto fine = check_graph(graph); !fine) return fine.error();
  const Lifetimes life = lifetimes_of(graph, plan.align_bytes);
  const bool has_tiers = !plan_tiers(plan.hardware).empty();
  for (schedule::Explanation& each : out) {
    if (each.choice.empty()) {
      each = explain_unrecorded(graph, life, each.storage.value(), has_tiers);
    }
  }
  return out;
}

Result<std::vector<PositionExplanation>> explain_positions(
    const Schedule& plan, const std::vector<schedule::Position>& positions) {
  if (auto fine = check_plan(plan); !fine) return fine.error();
  const Graph graph = refined_graph(plan);
  if (auto fine = check_graph(graph); !fine) return fine.error();
  const Lifetimes life = lifetimes_of(graph, plan.align_bytes);
  const Order order(plan);
  const Reasons reasons(plan, order, life);
  const auto stalls = stalls_of(plan);
  const auto awaited = last_awaited(plan);
  std::vector<PositionExplanation> out;
  for (const schedule::Position position : positions) {
    const std::uint32_t p = position.value();
    if (p >= plan.positions.size()) return bad_input("the schedule has no such position");
    PositionExplanation one;
    one.program_index = plan.positions[p].op.value();
    one.shift = order.shift[p];
    one.again = order.kept[p] == Kept::kAgain;
    if (!plan.prediction.op_start_ns.empty()) {
      one.stall_ns = static_cast<std::uint64_t>(stalls[p]);
    }
    if (stalls[p] > 0) one.waits_for = awaited[p];
    one.why = reasons.of(p);
    out.push_back(std::move(one));
  }
  return out;
}

}  // namespace ho::analyzer
