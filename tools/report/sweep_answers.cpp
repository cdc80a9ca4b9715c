#include "tools/report/sweep_answers.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "common/base/units.hpp"
#include "tools/report/page_text.hpp"

namespace ho::analyzer {
namespace {

using detail::number;

/// A step that is this part of its ops longer costs nothing: less than durations vary.
constexpr std::uint64_t kFreePart = 100;

/// The points of one bandwidth, most memory first.
class Points {
 public:
  Points(const Sweep& sweep, double bandwidth) : sweep_(sweep) {
    for (const SweepPoint& point : sweep.points) {
      if (point.bandwidth == bandwidth) points_.push_back(&point);
    }
    std::stable_sort(points_.begin(), points_.end(), [](const auto* a, const auto* b) {
      return a->budget_bytes > b->budget_bytes;
    });
  }

  [[nodiscard]] SweepAnswer answer() const {
    const std::size_t enough = free_points();
    SweepAnswer out{points_.front()->bandwidth, std::nullopt, {}};
    std::vector<const SweepPoint*> longer;
    std::vector<const SweepPoint*> short_again;  // though more memory is not
    std::vector<const SweepPoint*> unfit;
    for (std::size_t i = enough; i < points_.size(); ++i) {
      const SweepPoint* const point = points_[i];
      (is_free(*point) ? short_again : point->feasible ? longer : unfit).push_back(point);
    }
    if (enough > 0) {
      out.enough_bytes = points_[enough - 1]->budget_bytes;
      out.text = memory_of(*points_[enough - 1]) +
                 " costs nothing: the step is at most 1 % longer than its ops.";
      if (!longer.empty()) out.text += " With less it is longer: " + costs_of(longer) + ".";
    } else if (!longer.empty()) {
      out.text = (short_again.empty() ? "Each budget makes the step" : "The step is") +
                 (" longer than its ops: " + costs_of(longer)) + ".";
    }
    if (!short_again.empty()) {
      out.text += out.text.empty() ? "The step is at most 1 % longer than its ops at "
                                   : " Yet it is at most 1 % longer at ";
      out.text += list_of(short_again) + ".";
    }
    add_unfit(unfit, out.text);
    return out;
  }

 private:
  [[nodiscard]] bool is_free(const SweepPoint& point) const {
    return point.feasible && point.step_ns <= sweep_.compute_ns + sweep_.compute_ns / kFreePart;
  }

  /// Leading points that cost nothing.
  [[nodiscard]] std::size_t free_points() const {
    const auto end = std::find_if(points_.begin(), points_.end(),
                                  [this](const auto* point) { return !is_free(*point); });
    return static_cast<std::size_t>(end - points_.begin());
  }

  /// Tells budgets that are too small from those above a budget that has a plan: it would fit
  /// there, too, but was not found.
  void add_unfit(const std::vector<const SweepPoint*>& unfit, std::string& text) const {
    std::uint64_t least_bytes = UINT64_MAX;
    for (const SweepPoint* const point : points_) {
      if (point->feasible) least_bytes = point->budget_bytes;
    }
    const auto small = std::find_if(unfit.begin(), unfit.end(), [&](const auto* point) {
      return point->budget_bytes < least_bytes;
    });
    const std::vector<const SweepPoint*> missed(unfit.begin(), small);
    if (!missed.empty()) {
      text += (text.empty() ? "" : " ") + ("No plan was found for " + list_of(missed)) + ".";
    }
    if (small == unfit.end()) return;
    text += (text.empty() ? "" : " ") + ("No plan fits in " + memory_of(**small)) +
            (unfit.end() - small > 1 ? " or less." : ".");
  }

  [[nodiscard]] std::string memory_of(const SweepPoint& point) const {
    const double share =
        100 * static_cast<double>(point.budget_bytes) /
        static_cast<double>(std::max<std::uint64_t>(1, sweep_.peak_unmanaged_bytes));
    const std::string bytes = format_bytes(point.budget_bytes);
    return share < 1 ? bytes : number(share, 0) + " % of the peak (" + bytes + ")";
  }

  /// How much longer the step is than its ops.
  [[nodiscard]] std::string cost_of(const SweepPoint& point) const {
    if (sweep_.compute_ns == 0) return format_duration_ns(point.step_ns);
    const double ratio =
        static_cast<double>(point.step_ns) / static_cast<double>(sweep_.compute_ns);
    return ratio < 2 ? number(100 * (ratio - 1), ratio < 1.1 ? 1 : 0) + " %"
                     : number(ratio, 1) + " times as long";
  }

  /// The first and the last of `longer`, which has one at least.
  [[nodiscard]] std::string costs_of(const std::vector<const SweepPoint*>& longer) const {
    std::string out = cost_of(*longer.front()) + " at " + memory_of(*longer.front());
    if (longer.size() > 1)
      out += ", " + cost_of(*longer.back()) + " at " + memory_of(*longer.back());
    return out;
  }

  [[nodiscard]] std::string list_of(const std::vector<const SweepPoint*>& points) const {
    std::string out;
    for (const SweepPoint* const point : points) {
      out += (out.empty() ? "" : ", ") + memory_of(*point);
    }
    return out;
  }

  const Sweep& sweep_;
  std::vector<const SweepPoint*> points_;
};

}  // namespace

std::vector<SweepAnswer> sweep_answers(const Sweep& sweep) {
  std::vector<SweepAnswer> out;
  for (const SweepPoint& point : sweep.points) {
    const bool known = std::any_of(out.begin(), out.end(), [&point](const SweepAnswer& answer) {
      return answer.bandwidth == point.bandwidth;
    });
    if (!known) out.push_back(Points(sweep, point.bandwidth).answer());
  }
  return out;
}

}  // namespace ho::analyzer
