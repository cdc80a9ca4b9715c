#include "tools/report/report.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/units.hpp"
#include "common/model/check_graph.hpp"
#include "common/text/json.hpp"
#include "tools/analyzer/limit.hpp"
#include "tools/analyzer/problem/liveness.hpp"
#include "tools/analyzer/problem/planned_step.hpp"
#include "tools/report/report_items.hpp"
#include "tools/report/report_page.hpp"

namespace ho::analyzer {

namespace {

using detail::Item;
using detail::thin_out;
using schedule::CacheOp;
using schedule::CacheOpKind;
using schedule::Schedule;
using Span = schedule::MeasuredStep::Span;

constexpr std::size_t kTensorsShown = 40;
constexpr std::size_t kStallsShown = 12;

constexpr std::uint32_t kNoChannel = UINT32_MAX;
constexpr std::uint32_t kUnused = UINT32_MAX;

class ReportPage {
 public:
  explicit ReportPage(const ReportInput& input)
      : input_(input),
        schedule_(input.schedule),
        why_(schedule_.storages.size(), nullptr),
        op_slot_(schedule_.ops.size(), kUnused),
        tensor_slot_(schedule_.storages.size(), kUnused) {
    for (const auto& each : schedule_.explanations) {
      if (each.storage.value() < why_.size()) why_[each.storage.value()] = &each;
    }
    find_channels();
    find_phases();
  }

  std::string data() {
    headline();
    lists();
    json_.key("predicted").begin_object();
    json_.field("end", input_.predicted.step_ns);
    lanes(predicted_ops(), input_.predicted.cache_ops, input_.predicted.step_ns);
    curve("memory", thin_out(input_.predicted.memory, input_.predicted.step_ns));
    json_.end();
    curve("unmanagedCurve", thin_out(unmanaged(), input_.predicted.step_ns));
    if (input_.measured != nullptr) {
      const auto ops = measured_ops();
      const std::uint64_t end_ns = ops.empty() ? 0 : ops.back().span.end_ns;
      json_.key("measured").begin_object().field("end", end_ns).field("step", end_ns);
      std::uint64_t stall_ns = 0;
      for (const std::uint64_t each : input_.measured->stall_ns) stall_ns += each;
      json_.field("stall", stall_ns);
      lanes(ops, input_.measured->cache_ops, 0);
      json_.end();
    }
    json_.field("merged", merged_);
    drawn_names();
    json_.end();
    return std::move(json_).text();
  }

 private:
  [[nodiscard]] const schedule::OpInfo& op_at(std::size_t p) const {
    return schedule_.ops[schedule_.positions[p].op.value()];
  }
  [[nodiscard]] static std::uint64_t bytes_of(const CacheOp& op) {
    return op.range_end_bytes - op.range_begin_bytes;
  }

  void find_channels() {
    std::map<std::string, std::uint32_t> seen;
    for (const CacheOp& op : schedule_.cache_ops) {
      if (op.kind != CacheOpKind::kDetach) seen.emplace(channel_name(op), 0);
    }
    for (auto& [name, index] : seen) {
      index = static_cast<std::uint32_t>(channels_.size());
      channels_.push_back(name);
    }
    for (const CacheOp& op : schedule_.cache_ops) {
      channel_of_.push_back(op.kind == CacheOpKind::kDetach ? kNoChannel : seen[channel_name(op)]);
    }
  }

  [[nodiscard]] std::string channel_name(const CacheOp& op) const {
    return std::string(schedule::home_tier_name(schedule::transfer_tier(schedule_, op))) +
           (schedule::moves_toward_device(op.kind) ? ".read" : ".write");
  }

  void find_phases() {
    std::map<std::string_view, std::uint32_t> seen;
    for (const auto& op : schedule_.ops) {
      const auto [at, added] = seen.emplace(op.phase, static_cast<std::uint32_t>(phases_.size()));
      if (added) phases_.push_back(op.phase);
      phase_of_.push_back(at->second);
    }
  }

  void headline() {
    // Computed from the schedule: a hand-made one may have no prediction.
    std::uint64_t compute_ns = 0;
    for (std::size_t p = 0; p < schedule_.positions.size(); ++p) {
      compute_ns += op_at(p).duration_ns;
    }
    std::uint64_t unmanaged_bytes = schedule_.prediction.peak_unmanaged_bytes;  // program order
    if (unmanaged_bytes == 0) {
      for (const MemoryPoint& point : unmanaged()) {
        unmanaged_bytes = std::max(unmanaged_bytes, point.bytes);
      }
    }
    json_.begin_object()
        .field("graph", schedule_.graph_name)
        .field("hardware", schedule_.hardware.name)
        .field("ops", schedule_.positions.size())
        .field("storages", schedule_.storages.size())
        .field("budget", schedule_.device_budget_bytes)
        .field("arena", schedule_.arena_bytes)
        .field("unmanaged", unmanaged_bytes)
        .field("compute", compute_ns)
        .field("step", input_.predicted.step_ns)
        .field("stall", input_.predicted.stall_ns)
        .field("bound", schedule_.prediction.lower_bound_ns)
        .field("margin", schedule_.prediction.margin_bandwidth)
        .field("margin_ops", schedule_.prediction.margin_op_time)
        .field("first_step", input_.predicted.first_step_ns)
        .field("epilogue", input_.predicted.epilogue_ns)
        .field("prefetch", input_.predicted.prefetch_bytes)
        .field("store", input_.predicted.store_bytes);
    order();
    limit();
    json_.key("runs").begin_array();
    for (const ReportRun& run : input_.runs) {
      json_.begin_object()
          .field("label", run.label)
          .field("peak", run.peak_device_bytes)
          .field("step_ms", run.step_ms)
          .field("overhead", run.overhead)
          .field("stall_ms", run.stall_ms)
          .field("moved", run.moved_bytes)
          .end();
    }
    json_.end();
  }

  /// The gain of the refined order, if it differs from program order.
  void order() {
    const schedule::Prediction& p = schedule_.prediction;
    if (p.moved_ops == 0 && p.recomputed_ops == 0) return;
    const OrderGains gains = input_.order != nullptr ? *input_.order : order_gains(schedule_);
    json_.key("order")
        .begin_object()
        .field("moved", p.moved_ops)
        .field("again", p.recomputed_ops)
        .field("step", p.program_order_step_ns)
        .field("bound", gains.program_order_lower_bound_ns)
        .field("refined_bound", gains.refined_lower_bound_ns)
        .field("live", gains.program_order_live_peak_bytes)
        .field("refined_live", gains.refined_live_peak_bytes)
        .end();
  }

  /// The stretch of the step that gives the lower bound, and the link that is busy then.
  void limit() {
    const auto found = limit_of(schedule_);
    if (!found) return;
    json_.key("limit")
        .begin_object()
        .field("name", found->name)
        .field("busy", found->busy)
        .field("from", found->from_ns)
        .field("to", found->to_ns)
        .field("text", describe(*found, schedule_.prediction.step_ns))
        .end();
  }

  void lists() {
    json_.key("phases").begin_array();
    for (const auto& each : phases_) json_.value(each);
    json_.end().key("channels").begin_array();
    for (const auto& each : channels_) json_.value(each);
    json_.end();
    tensors();
    longest_stalls();
  }

  /// Storages that move, most bytes first, and storages that stay for a reason, largest first.
  void tensors() {
    std::vector<std::uint64_t> moved(schedule_.storages.size(), 0);
    for (const CacheOp& op : schedule_.cache_ops) {
      if (op.kind != CacheOpKind::kDetach) moved[op.storage.value()] += bytes_of(op);
    }
    std::vector<std::size_t> moving;
    std::vector<std::size_t> staying;
    for (std::size_t s = 0; s < moved.size(); ++s) {
      if (moved[s] > 0) {
        moving.push_back(s);
      } else if (why_[s] != nullptr) {
        staying.push_back(s);
      }
    }
    std::stable_sort(moving.begin(), moving.end(),
                     [&](std::size_t a, std::size_t b) { return moved[a] > moved[b]; });
    std::stable_sort(staying.begin(), staying.end(), [&](std::size_t a, std::size_t b) {
      return schedule_.storages[a].bytes > schedule_.storages[b].bytes;
    });
    tensor_list("moved", moving, moved);
    tensor_list("kept", staying, moved);
  }

  void tensor_list(std::string_view name, const std::vector<std::size_t>& order,
                   const std::vector<std::uint64_t>& moved) {
    json_.key(name).begin_array();
    for (std::size_t i = 0; i < std::min(order.size(), kTensorsShown); ++i) {
      const Storage& storage = schedule_.storages[order[i]];
      json_.begin_object()
          .field("name", storage_label(storage.id, storage.name))
          .field("kind", storage_kind_name(storage.kind))
          .field("size", storage.bytes)
          .field("bytes", moved[order[i]]);
      said_of(order[i]);
      json_.end();
    }
    json_.end();
  }

  /// The choice for a storage, and what the planner recorded about it.
  void said_of(std::size_t storage) {
    const auto* why = why_[storage];
    json_.field("choice", why == nullptr ? std::string_view() : why->choice)
        .field("reason", why == nullptr ? std::string_view() : why->reason);
    json_.key("considered").begin_array();
    for (std::size_t i = 0; why != nullptr && i < why->considered.size(); ++i) {
      json_.value(why->considered[i]);
    }
    json_.end();
  }

  void longest_stalls() {
    const Simulation& predicted = input_.predicted;
    const std::size_t count = std::min(predicted.op_stall_ns.size(), schedule_.positions.size());
    std::vector<std::size_t> order;
    for (std::size_t p = 0; p < count; ++p) {
      if (predicted.op_stall_ns[p] > 0) order.push_back(p);
    }
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return predicted.op_stall_ns[a] > predicted.op_stall_ns[b];
    });
    const auto awaited = last_awaited(schedule_, predicted.cache_ops, predicted.step_ns);
    for (const std::size_t p : order) {  // longest wait first for an op that runs again
      if (!awaited[p]) continue;
      waits_for_.emplace(schedule_.positions[p].op.value(), awaited[p]->value());
    }
    json_.key("stalls").begin_array();
    for (std::size_t i = 0; i < std::min(order.size(), kStallsShown); ++i) {
      const std::size_t p = order[i];
      const std::string why = awaited[p] ? describe_transfer(awaited[p]->value()) : "";
      json_.begin_object()
          .field("op", op_label(op_at(p).id, op_at(p).name))
          .field("at", predicted.op_start_ns[p])
          .field("ns", predicted.op_stall_ns[p])
          .field("why", why)
          .end();
    }
    json_.end();
  }

  [[nodiscard]] std::string describe_transfer(std::size_t cache_op) const {
    const CacheOp& op = schedule_.cache_ops[cache_op];
    const Storage& storage = schedule_.storages[op.storage.value()];
    return std::string(schedule::cache_op_kind_name(op.kind)) + " of " +
           storage_label(storage.id, storage.name) + " (" + format_bytes(bytes_of(op)) + ")";
  }

  [[nodiscard]] Item compute_item(std::size_t p, Span span, std::uint64_t stall_ns) const {
    const std::uint32_t op = schedule_.positions[p].op.value();
    return {span, phase_of_[op], std::min(stall_ns, span.start_ns), 1, op};
  }

  [[nodiscard]] std::vector<Item> predicted_ops() const {
    const Simulation& predicted = input_.predicted;
    std::vector<Item> out;
    const std::size_t count = std::min(
        {predicted.op_start_ns.size(), predicted.op_stall_ns.size(), schedule_.positions.size()});
    for (std::size_t p = 0; p < count; ++p) {
      const std::uint64_t start_ns = predicted.op_start_ns[p];
      out.push_back(
          compute_item(p, {start_ns, start_ns + op_at(p).duration_ns}, predicted.op_stall_ns[p]));
    }
    return out;
  }

  [[nodiscard]] std::vector<Item> measured_ops() const {
    const schedule::MeasuredStep& measured = *input_.measured;
    std::vector<Item> out;
    const std::size_t count = std::min(measured.ops.size(), schedule_.positions.size());
    for (std::size_t p = 0; p < count; ++p) {
      const std::uint64_t stall_ns = p < measured.stall_ns.size() ? measured.stall_ns[p] : 0;
      out.push_back(compute_item(p, measured.ops[p], stall_ns));
    }
    return out;
  }

  /// Writes names only for items that are drawn: the items of a lane mark them in `used`.
  void lane(std::vector<Item> items, std::vector<std::uint32_t>& used,
            std::vector<std::uint32_t>& slot) {
    std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
      return a.span.start_ns < b.span.start_ns;
    });
    const std::size_t whole = items.size();
    items = thin_out(std::move(items));
    merged_ = merged_ || items.size() < whole;
    json_.begin_array();
    for (const Item& item : items) {
      json_.begin_array()
          .value(item.span.start_ns)
          .value(std::max(item.span.start_ns, item.span.end_ns))
          .value(item.color)
          .value(item.stall_ns)
          .value(item.count);
      if (item.count == 1) {
        if (slot[item.name] == kUnused) {
          slot[item.name] = static_cast<std::uint32_t>(used.size());
          used.push_back(item.name);
        }
        json_.value(slot[item.name]);
      }
      json_.end();
    }
    json_.end();
  }

  /// Shows the part beyond the period at the start of the step, since the next step looks the same.
  static void add_in_period(Item item, std::uint64_t period_ns, std::vector<Item>& out) {
    const std::uint64_t shift_ns = period_ns == 0 ? 0 : item.span.start_ns / period_ns * period_ns;
    item.span.start_ns -= shift_ns;
    item.span.end_ns -= std::min(shift_ns, item.span.end_ns);
    out.push_back(item);
    if (period_ns == 0 || item.span.end_ns <= period_ns) return;
    out.back().span.end_ns = period_ns;
    item.span = {0, std::min(period_ns, item.span.end_ns - period_ns)};
    out.push_back(item);
  }

  /// @param period_ns  0: measured times, which are not folded into one step
  void lanes(std::vector<Item> ops, const std::vector<Span>& transfers, std::uint64_t period_ns) {
    json_.key("compute");
    lane(std::move(ops), used_ops_, op_slot_);
    std::vector<std::vector<Item>> by_channel(channels_.size());
    for (std::size_t i = 0; i < std::min(transfers.size(), channel_of_.size()); ++i) {
      if (channel_of_[i] == kNoChannel) continue;
      const CacheOp& op = schedule_.cache_ops[i];
      const bool away = op.kind == CacheOpKind::kStore || op.kind == CacheOpKind::kStageOut;
      const Item item{transfers[i], away ? 1U : 0U, 0, 1, op.storage.value()};
      add_in_period(item, period_ns, by_channel[channel_of_[i]]);
    }
    json_.key("channels").begin_array();
    for (auto& items : by_channel) lane(std::move(items), used_tensors_, tensor_slot_);
    json_.end();
  }

  /// Live bytes with everything resident, at the times of the plan's ops, so that an op has the
  /// same place in both curves.
  [[nodiscard]] std::vector<MemoryPoint> unmanaged() const {
    const auto changes = unmanaged_changes(refined_graph(schedule_));
    std::vector<MemoryPoint> out;
    const auto& starts = input_.predicted.op_start_ns;
    std::int64_t live = 0;
    for (std::size_t p = 0; p < std::min(starts.size(), schedule_.positions.size()); ++p) {
      live += changes[p];
      out.push_back({starts[p], static_cast<std::uint64_t>(live)});
    }
    return out;
  }

  void curve(std::string_view name, const std::vector<MemoryPoint>& points) {
    json_.key(name).begin_array();
    for (const auto& point : points) {
      json_.begin_array().value(point.at_ns).value(point.bytes).end();
    }
    json_.end();
  }

  void drawn_names() {
    json_.key("opNames").begin_array();
    for (const std::uint32_t op : used_ops_) {
      json_.value(op_label(schedule_.ops[op].id, schedule_.ops[op].name));
    }
    json_.end().key("opWaits").begin_array();  // parallel to opNames
    for (const std::uint32_t op : used_ops_) {
      const auto waits = waits_for_.find(op);
      json_.value(waits == waits_for_.end() ? "" : describe_transfer(waits->second));
    }
    json_.end().key("tensors").begin_array();
    for (const std::uint32_t s : used_tensors_) {
      const Storage& storage = schedule_.storages[s];
      json_.begin_object()
          .field("name", storage_label(storage.id, storage.name))
          .field("size", storage.bytes);
      said_of(s);
      json_.end();
    }
    json_.end();
  }

  const ReportInput& input_;
  const Schedule& schedule_;
  std::vector<const schedule::Explanation*> why_;
  std::vector<std::string> channels_;
  std::vector<std::uint32_t> channel_of_;
  std::vector<std::string> phases_;
  std::vector<std::uint32_t> phase_of_;
  std::map<std::uint32_t, std::size_t>
      waits_for_;                        ///< op -> the cache op that it waits for longest
  std::vector<std::uint32_t> used_ops_;  ///< in order of first use; the slots map back
  std::vector<std::uint32_t> op_slot_;
  std::vector<std::uint32_t> used_tensors_;
  std::vector<std::uint32_t> tensor_slot_;
  bool merged_ = false;
  JsonWriter json_;
};

}  // namespace

std::string render_report(const ReportInput& input) {
  std::string out(detail::kReportPageHead);
  out += ReportPage(input).data();
  out += detail::kReportPageTail;
  return out;
}

}  // namespace ho::analyzer
