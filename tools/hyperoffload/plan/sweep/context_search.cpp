#include "tools/hyperoffload/plan/sweep/context_search.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <variant>

#include "common/base/units.hpp"
#include "common/model/links.hpp"
#include "common/schedule/schedule.hpp"
#include "tools/analyzer/analyzer.hpp"
#include "tools/models/longest_context.hpp"

namespace ho::cli {

namespace {

using models::Fit;

/// The first context of every search.
constexpr std::uint64_t kShortest = 1024;
constexpr std::uint64_t kAlignBytes = 64;
/// Budgets that are compared differ by this part of a peak.
constexpr std::uint64_t kPeakParts = 64;

std::uint64_t memory_bytes(const Hardware& hardware) {
  std::uint64_t sum = hardware.device_bytes;
  for (const auto* tier : {&hardware.local_ddr, &hardware.remote_ddr, &hardware.flash}) {
    if (*tier) sum += (*tier)->capacity_bytes;
  }
  return sum;
}

/// What a step takes with everything on the device: its ops, before which its inputs come from the
/// nearest tier.
std::uint64_t resident_ns(const Graph& graph, const Hardware& hardware) {
  std::uint64_t sum = analyzer::compute_ns(graph);
  const auto& tier = hardware.local_ddr ? hardware.local_ddr : hardware.remote_ddr;
  if (!tier) return sum;
  const Link link = effective_link(tier->read, hardware.device_port_read);
  for (const Storage& storage : graph.storages) {
    const bool comes = storage.kind == StorageKind::kInput && !storage.persistent;
    if (comes) sum += static_cast<std::uint64_t>(transfer_ns(link, storage.bytes));
  }
  return sum;
}

/// The busiest channel.
std::string busiest(const schedule::Prediction& prediction) {
  const auto at =
      std::max_element(prediction.channels.begin(), prediction.channels.end(),
                       [](const auto& a, const auto& b) { return a.busy_ns < b.busy_ns; });
  return at == prediction.channels.end() ? "the ops' durations" : at->name;
}

/// From the end of a group's turn to the begin of its next one.
std::uint64_t wait_ns(const models::LlamaLike& model, std::uint64_t step_ns) {
  return step_ns - step_ns / model.groups;
}

class ContextSearch {
 public:
  ContextSearch(const models::LlamaLike& model, const Hardware& hardware, double overhead_max,
                const std::function<void(const std::string&)>& progress)
      : model_(model), hardware_(hardware), overhead_max_(overhead_max), progress_(progress) {
    row_.hardware = hardware.name;
    row_.device_bytes = hardware.device_bytes;
  }

  Result<analyzer::ContextRow> run() {
    const std::uint64_t shortest = std::max(kShortest, model_.turn_tokens);
    looked_for_ = "resident";
    const auto resident = models::longest_context(
        model_, shortest, [this](const Graph& graph) { return fits_device(graph); });
    if (!resident) return resident.error();
    row_.resident_tokens = resident->tokens;
    known_ = "resident " + std::to_string(resident->tokens) + ", ";

    looked_for_ = "bound";
    const auto bound =
        models::longest_context(model_, std::max(shortest, resident->tokens),
                                [this](const Graph& graph) { return fits_bound(graph); });
    if (!bound) return bound.error();
    row_.bound_tokens = bound->tokens;
    known_ += "bound " + std::to_string(bound->tokens) + ", ";
    if (bound->graph_too_large) row_.ended_by = "graph size";
    if (bound->tokens == 0) return std::move(row_);

    looked_for_ = "planned";
    auto planned = longest_planned(shortest, resident->tokens, bound->tokens);
    if (planned && planned->tokens < resident->tokens) {
      // Steps so short that their inputs alone are too much: resident, they come as late.
      counts_inputs_ = true;
      planned = longest_planned(shortest, resident->tokens, bound->tokens);
    }
    if (!planned) return planned.error();
    row_.planned_tokens = planned->tokens;
    known_ = "planned " + std::to_string(planned->tokens) + ", ";
    if (row_.ended_by == kLinks && !busiest_.empty()) row_.ended_by = busiest_;
    if (model_.phase == models::Phase::kDecode) row_.wait_ns = wait_ns(model_, row_.step_ns);
    if (auto compared = compare_peaks(); !compared) return compared.error();
    return std::move(row_);
  }

 private:
  static constexpr const char* kLinks = "links";

  [[nodiscard]] Result<models::LongestContext> longest_planned(std::uint64_t shortest,
                                                               std::uint64_t resident,
                                                               std::uint64_t bound) {
    const models::Fits fits = [this](const Graph& graph) { return fits_plan(graph); };
    auto found = models::longest_context_below(model_, std::max(shortest, resident), bound, fits);
    if (!found || found->tokens > 0 || resident <= shortest) return found;
    // Packing costs a little.
    return models::longest_context_below(model_, shortest, resident - 1, fits);
  }

  /// The longest step that is allowed.
  [[nodiscard]] std::uint64_t enough_ns(const Graph& graph) const {
    const std::uint64_t ns =
        counts_inputs_ ? resident_ns(graph, hardware_) : analyzer::compute_ns(graph);
    return ns + static_cast<std::uint64_t>(static_cast<double>(ns) * overhead_max_);
  }

  /// Says in half a line what is known and what is tried. @param tries  of a plan
  void tell(const Graph& graph, std::uint64_t tries = 0) const {
    progress_(hardware_.name + ": " + known_ + looked_for_ + "? " +
              std::to_string(graph.ops.size()) + " ops" +
              (tries == 0 ? "" : ", try " + std::to_string(tries)));
  }

  Result<Fit> fits_device(const Graph& graph) {
    tell(graph);
    const std::uint64_t peak = analyzer::peak_unmanaged_bytes(graph);
    if (peak > hardware_.device_bytes) return Fit::kNoMore;
    row_.resident_peak_bytes = peak;
    return Fit::kYes;
  }

  /// Whether a plan is conceivable.
  Result<Fit> fits_bound(const Graph& graph) {
    tell(graph);
    if (analyzer::largest_op_bytes(graph) > hardware_.device_bytes) {
      return bound_ends("device", Fit::kNoMore);
    }
    if (analyzer::peak_unmanaged_bytes(graph) > memory_bytes(hardware_)) {
      return bound_ends("memory", Fit::kNoMore);
    }
    const std::uint64_t least_ns =
        analyzer::lower_bound_ns(graph, hardware_, hardware_.device_bytes);
    if (least_ns > enough_ns(graph)) return bound_ends(kLinks, Fit::kNo);
    any_conceivable_ = true;
    return Fit::kYes;
  }

  /// Where no context at all is conceivable, the shortest one says why.
  Fit bound_ends(const char* by, Fit answer) {
    if (any_conceivable_ || row_.ended_by.empty()) row_.ended_by = by;
    return answer;
  }

  /// Any plan that is short enough, or the first one tried.
  Result<analyzer::Outcome> plan(const Graph& graph, std::uint64_t budget_bytes) const {
    tell(graph);
    analyzer::Options options;
    options.device_budget_bytes = budget_bytes;
    options.align_bytes = kAlignBytes;
    options.keep_order = true;
    options.enough_step_ns = enough_ns(graph);
    options.progress = [&](std::uint64_t tries, std::uint64_t) { tell(graph, tries); };
    return analyzer::analyze(graph, hardware_, options);
  }

  Result<Fit> fits_plan(const Graph& graph) {
    auto outcome = plan(graph, hardware_.device_bytes);
    if (!outcome) return outcome.error();
    if (const auto* const lacks = std::get_if<analyzer::Infeasible>(&*outcome)) {
      row_.ended_by = lacks->tier;
      return Fit::kNo;
    }
    const auto& made = std::get<schedule::Schedule>(*outcome);
    const schedule::Prediction& p = made.prediction;
    if (p.step_ns > enough_ns(graph)) {
      row_.ended_by = busiest(p);
      return Fit::kNo;
    }
    busiest_ = busiest(p);
    row_.peak_unmanaged_bytes = p.peak_unmanaged_bytes;
    row_.arena_bytes = made.arena_bytes;
    row_.step_ns = p.step_ns;
    row_.compute_ns = p.compute_ns;
    return Fit::kYes;
  }

  /// Finds the device memory that the longest resident context needs by plan, by bisection.
  Result<void> compare_peaks() {
    if (row_.resident_tokens == 0) return {};
    model_.context = row_.resident_tokens;
    const auto graph = models::llama_like(model_);
    if (!graph) return graph.error();
    const auto any = try_peak(*graph, hardware_.device_bytes);
    if (!any) return any.error();
    if (!*any) return {};
    const std::uint64_t part = std::max<std::uint64_t>(1, row_.resident_peak_bytes / kPeakParts);
    std::uint64_t first = 0;  // in parts: the first is too small, the last is enough
    std::uint64_t last = (row_.planned_peak_bytes - 1) / part + 1;
    while (last - first > 1) {
      const std::uint64_t middle = first + (last - first) / 2;
      const auto found = try_peak(*graph, middle * part);
      if (!found) return found.error();
      if (*found) {
        last = std::min(middle, (row_.planned_peak_bytes - 1) / part + 1);
      } else {
        first = middle;
      }
    }
    return {};
  }

  /// Whether there is a plan within the budget, whose arena is then the planned peak. What the
  /// lower bound excludes is not planned: a search that fails takes longest.
  Result<bool> try_peak(const Graph& graph, std::uint64_t budget_bytes) {
    if (analyzer::largest_op_bytes(graph) > budget_bytes ||
        analyzer::lower_bound_ns(graph, hardware_, budget_bytes) > enough_ns(graph)) {
      return false;
    }
    looked_for_ = "within " + format_bytes(budget_bytes);
    auto outcome = plan(graph, budget_bytes);
    if (!outcome) return outcome.error();
    const auto* const made = std::get_if<schedule::Schedule>(&*outcome);
    if (made == nullptr || made->prediction.step_ns > enough_ns(graph)) return false;
    std::uint64_t& peak = row_.planned_peak_bytes;
    peak = peak == 0 ? made->arena_bytes : std::min(peak, made->arena_bytes);
    return true;
  }

  models::LlamaLike model_;
  const Hardware& hardware_;
  const double overhead_max_;
  const std::function<void(const std::string&)>& progress_;
  analyzer::ContextRow row_;
  bool any_conceivable_ = false;
  bool counts_inputs_ = false;  ///< with the ops of a step that is not to be exceeded
  std::string busiest_;         ///< channel of the longest plan
  std::string known_;           ///< figures so far, for people
  std::string looked_for_;      ///< the figure that is searched
};

}  // namespace

Result<analyzer::ContextRow> find_longest(const models::LlamaLike& model, const Hardware& hardware,
                                          double overhead_max,
                                          const std::function<void(const std::string&)>& progress) {
  return ContextSearch(model, hardware, overhead_max, progress).run();
}

}  // namespace ho::cli
