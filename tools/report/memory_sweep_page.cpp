#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "common/base/units.hpp"
#include "tools/report/memory_sweep.hpp"
#include "tools/report/page_text.hpp"
#include "tools/report/sweep_answers.hpp"

namespace ho::analyzer {
namespace {

using detail::escaped;
using detail::number;

// One panel, in SVG units.
constexpr double kWidth = 560;
constexpr double kHeight = 300;
constexpr double kLeft = 52;
constexpr double kRight = 24;
constexpr double kTop = 12;
constexpr double kBottom = 38;

struct Series {
  const char* name;
  const char* colour;
  const char* dash;
  double width;
  std::function<double(const SweepPoint&)> step_ns;  ///< 0: no value
};

std::array<Series, 5> series() {
  return {{
      {"layer window", "var(--c3)", "", 1.5,
       [](const SweepPoint& p) { return static_cast<double>(p.window_step_ns.value_or(0)); }},
      {"on-demand LRU", "var(--budget)", "", 1.5,
       [](const SweepPoint& p) { return static_cast<double>(p.lru_step_ns.value_or(0)); }},
      {"G10's greedy plan", "var(--c5)", "2 3", 1.5,
       [](const SweepPoint& p) { return static_cast<double>(p.greedy_step_ns.value_or(0)); }},
      {"lower bound", "var(--bare)", "5 4", 1.5,
       [](const SweepPoint& p) { return static_cast<double>(p.lower_bound_ns); }},
      {"planned", "var(--plan)", "", 2.5,
       [](const SweepPoint& p) { return static_cast<double>(p.step_ns); }},
  }};
}

std::string bandwidth_name(double factor) {
  for (int parts = 1; parts <= 64; parts *= 2) {
    if (std::abs(factor * parts - 1) < 1e-9) {
      return parts == 1 ? "full bandwidth" : "1/" + std::to_string(parts) + " of the bandwidth";
    }
  }
  return number(factor, 3) + " of the bandwidth";
}

class SweepPage {
 public:
  explicit SweepPage(const Sweep& sweep) : sweep_(sweep), answers_(sweep_answers(sweep)) {
    compute_ns_ = std::max(1.0, static_cast<double>(sweep.compute_ns));
    for (const SweepPoint& point : sweep.points) {
      most_bytes_ = std::max(most_bytes_, static_cast<double>(point.budget_bytes));
      if (!point.feasible) continue;
      for (const Series& each : series()) slowest_ = std::max(slowest_, each.step_ns(point));
    }
    slowest_ = std::max(slowest_ / compute_ns_, 1.2);
  }

  std::string text() {
    head();
    out_ += "<div class=\"panels\">";
    for (std::size_t first = 0; first < sweep_.points.size();) {
      std::size_t last = first;
      while (last < sweep_.points.size() &&
             sweep_.points[last].bandwidth == sweep_.points[first].bandwidth) {
        ++last;
      }
      panel(first, last);
      first = last;
    }
    out_ += "</div>";
    table();
    out_ += detail::kStaticPageTail;
    return std::move(out_);
  }

 private:
  [[nodiscard]] double share(std::uint64_t bytes) const {
    const auto peak = static_cast<double>(std::max<std::uint64_t>(1, sweep_.peak_unmanaged_bytes));
    return 100 * static_cast<double>(bytes) / peak;
  }
  [[nodiscard]] double x(std::uint64_t bytes) const {
    return kLeft + (kWidth - kLeft - kRight) * static_cast<double>(bytes) / most_bytes_;
  }
  /// Logarithmic: the slowest baseline is at the top, compute alone at the bottom.
  [[nodiscard]] double y(double ratio) const {
    const double part = std::log(std::max(1.0, ratio)) / std::log(slowest_);
    return kHeight - kBottom - (kHeight - kTop - kBottom) * part;
  }

  void head() {
    out_ += detail::static_page_head(
        "HyperOffload sweep",
        ".panels { display:grid; grid-template-columns:repeat(auto-fit,minmax(430px,1fr)); "
        "gap:14px; margin-bottom:14px } .panels .card { margin:0 } svg { width:100%; height:auto; "
        "display:block } .panels p { margin:8px 0 0 } svg text { fill:var(--soft); font-size:12px "
        "} .g { stroke:var(--grid) } "
        ".a { stroke:var(--line) }");
    out_ += "<h1>";
    out_ += escaped(sweep_.graph) + "</h1><p class=\"sub\">Step time over device memory; " +
            format_bytes(sweep_.peak_unmanaged_bytes) + " without a plan, " +
            format_duration_ns(sweep_.compute_ns) +
            " of compute. The vertical axis is logarithmic. Point at a dot for its "
            "figures.</p><div class=\"legend\">";
    for (const Series& each : series()) {
      out_ += "<span><i style=\"background:" + std::string(each.colour) + "\"></i>" + each.name +
              "</span>";
    }
    out_ += "</div>";
  }

  void axes() {
    for (const double ratio : {1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0, 1000.0}) {
      if (ratio > slowest_ * 1.0001) break;
      const std::string at = number(y(ratio), 1);
      out_ += "<line class=\"g\" x1=\"" + number(kLeft, 0) + "\" x2=\"" +
              number(kWidth - kRight, 0) + "\" y1=\"" + at + "\" y2=\"" + at + "\"/><text x=\"" +
              number(kLeft - 6, 0) + "\" y=\"" + number(y(ratio) + 4, 1) +
              "\" text-anchor=\"end\">" + number(ratio, ratio < 2 && ratio != 1.0 ? 1 : 0) +
              "&times;</text>";
    }
    const double top = share(static_cast<std::uint64_t>(most_bytes_));
    for (int percent = 0; percent <= top + 0.01; percent += 20) {
      const double at = kLeft + (kWidth - kLeft - kRight) * percent / top;
      out_ += "<text x=\"" + number(at, 1) + "\" y=\"" + number(kHeight - 18, 0) +
              "\" text-anchor=\"middle\">" + std::to_string(percent) + " %</text>";
    }
    out_ += "<line class=\"a\" x1=\"" + number(kLeft, 0) + "\" x2=\"" + number(kWidth - kRight, 0) +
            "\" y1=\"" + number(kHeight - kBottom, 0) + "\" y2=\"" + number(kHeight - kBottom, 0) +
            "\"/><text x=\"" + number((kLeft + kWidth - kRight) / 2, 0) + "\" y=\"" +
            number(kHeight - 3, 0) +
            "\" text-anchor=\"middle\">device memory, of the unmanaged peak</text>";
  }

  void curve(const Series& each, std::size_t first, std::size_t last) {
    std::string line;
    std::string dots;
    for (std::size_t i = first; i < last; ++i) {
      const SweepPoint& point = sweep_.points[i];
      const double step_ns = point.feasible ? each.step_ns(point) : 0;
      if (step_ns == 0) continue;
      const double ratio = step_ns / compute_ns_;
      line += number(x(point.budget_bytes), 1) + "," + number(y(ratio), 1) + " ";
      dots += "<circle cx=\"" + number(x(point.budget_bytes), 1) + "\" cy=\"" +
              number(y(ratio), 1) + "\" r=\"" + number(each.width + 1, 1) + "\" fill=\"" +
              each.colour + "\"><title>" + each.name + ", " + number(share(point.budget_bytes), 0) +
              " %: " + format_duration_ns(static_cast<std::uint64_t>(step_ns)) + ", " +
              number(ratio, 3) + " x compute</title></circle>";
    }
    out_ += "<polyline fill=\"none\" stroke=\"" + std::string(each.colour) + "\" stroke-width=\"" +
            number(each.width, 1) + "\" stroke-dasharray=\"" + each.dash + "\" points=\"" + line +
            "\"/>" + dots;
  }

  void panel(std::size_t first, std::size_t last) {
    out_ += "<div class=\"card\"><h2>" + bandwidth_name(sweep_.points[first].bandwidth) +
            "</h2><svg viewBox=\"0 0 " + number(kWidth, 0) + " " + number(kHeight, 0) +
            "\" role=\"img\">";
    axes();
    for (const Series& each : series()) curve(each, first, last);
    out_ += "</svg><p>" + answer_at(sweep_.points[first].bandwidth) + "</p></div>";
  }

  [[nodiscard]] std::string answer_at(double bandwidth) const {
    for (const SweepAnswer& answer : answers_) {
      if (answer.bandwidth == bandwidth) return escaped(answer.text);
    }
    return {};
  }

  void table() {
    out_ +=
        "<div class=\"card\"><h2>All points</h2><div class=\"scroll\"><table><tr><th>bandwidth</th>"
        "<th class=\"r\">memory</th><th class=\"r\">planned</th><th class=\"r\">over the bound</th>"
        "<th class=\"r\">stall</th><th class=\"r\">run again</th><th class=\"r\">on-demand LRU</th>"
        "<th class=\"r\">layer window</th><th class=\"r\">G10's greedy plan</th></tr>";
    const auto cell = [&](const std::string& text) { out_ += "<td class=\"r\">" + text + "</td>"; };
    const auto times = [&](const std::optional<std::uint64_t>& step_ns, std::uint64_t ours_ns) {
      if (!step_ns) return std::string("cannot run");
      const double ratio =
          static_cast<double>(*step_ns) / static_cast<double>(std::max<std::uint64_t>(1, ours_ns));
      return format_duration_ns(*step_ns) + " (" + number(ratio, 2) + "&times;)";
    };
    for (const SweepPoint& point : sweep_.points) {
      out_ += "<tr><td>" + bandwidth_name(point.bandwidth) + "</td>";
      cell(number(share(point.budget_bytes), 0) + " % (" + format_bytes(point.budget_bytes) + ")");
      if (!point.feasible) {
        out_ += "<td class=\"none\" colspan=\"7\">no plan fits</td></tr>";
        continue;
      }
      const double bound = static_cast<double>(std::max<std::uint64_t>(1, point.lower_bound_ns));
      cell(format_duration_ns(point.step_ns));
      cell("+" + number(100 * (static_cast<double>(point.step_ns) / bound - 1), 1) + " %");
      cell(format_duration_ns(point.stall_ns));
      cell(std::to_string(point.recomputed_ops) + " ops");
      cell(times(point.lru_step_ns, point.step_ns));
      cell(times(point.window_step_ns, point.step_ns));
      cell(times(point.greedy_step_ns, point.step_ns));
      out_ += "</tr>";
    }
    out_ += "</table></div></div>";
  }

  const Sweep& sweep_;
  std::vector<SweepAnswer> answers_;
  double compute_ns_ = 1;
  double most_bytes_ = 1;
  double slowest_ = 1;
  std::string out_;
};

}  // namespace

std::string render_sweep(const Sweep& sweep) { return SweepPage(sweep).text(); }

}  // namespace ho::analyzer
