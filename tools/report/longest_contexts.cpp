#include "tools/report/longest_contexts.hpp"

#include <algorithm>

#include "common/base/units.hpp"
#include "tools/report/page_text.hpp"

namespace ho::analyzer {
namespace {

using detail::escaped;
using detail::number;

constexpr std::string_view kStyle =
    ".bars { display:grid; grid-template-columns:max-content 1fr; gap:5px 12px; "
    "align-items:center } .bars .k { color:var(--soft) } .bar { display:flex; align-items:center; "
    "gap:8px; font-variant-numeric:tabular-nums; white-space:nowrap; padding-right:130px } "
    ".bar i { display:block; height:15px; min-width:1px; border-radius:3px; flex:none } "
    ".bar span { margin-right:-130px } h3 { font-size:14px; font-weight:550; margin:14px 0 6px } "
    "h2 + h3 { margin-top:0 }";

/// 1274880 -> "1,274,880".
std::string grouped(std::uint64_t value) {
  std::string text = std::to_string(value);
  for (std::size_t at = text.size(); at > 3;) text.insert(at -= 3, ",");
  return text;
}

double ratio(std::uint64_t a, std::uint64_t b) {
  return static_cast<double>(a) / static_cast<double>(b);
}

/// "52.1 GiB (-35 %)" beside what a resident step needs.
std::string peak_text(const ContextRow& row) {
  if (row.planned_peak_bytes == 0) return "-";
  const double change = 100 * (ratio(row.planned_peak_bytes, row.resident_peak_bytes) - 1);
  return format_bytes(row.planned_peak_bytes) + " (" + number(change, 0) + " %)";
}

void add_bar(std::string& out, const char* name, const char* colour, std::uint64_t tokens,
             std::uint64_t most) {
  out += std::string("<span class=\"k\">") + name + "</span><div class=\"bar\"><i style=\"width:" +
         number(100 * ratio(tokens, std::max<std::uint64_t>(1, most)), 2) +
         "%;background:" + colour + "\"></i><span>" + (tokens == 0 ? "none" : grouped(tokens)) +
         "</span></div>";
}

void add_table(std::string& out, const std::vector<ContextRow>& rows) {
  out +=
      "<div class=\"card\"><h2>All figures</h2><div class=\"scroll\"><table><tr><th>hardware</th>"
      "<th class=\"r\">device</th><th class=\"r\">resident</th><th class=\"r\">planned</th>"
      "<th class=\"r\">times</th><th class=\"r\">bound</th><th class=\"r\">of the bound</th>"
      "<th>ended by</th>"
      "<th class=\"r\">step</th><th class=\"r\">stall</th><th class=\"r\">wait for a turn</th>"
      "<th class=\"r\">resident peak</th><th class=\"r\">planned peak</th></tr>";
  for (const ContextRow& row : rows) {
    const auto cell = [&out](const std::string& text) {
      out += "<td class=\"r\">" + text + "</td>";
    };
    const bool any = row.planned_tokens > 0;
    out += "<tr><td class=\"name\">" + escaped(row.hardware) + "</td>";
    cell(format_bytes(row.device_bytes));
    cell(grouped(row.resident_tokens));
    cell(grouped(row.planned_tokens));
    cell(times_text(row.planned_tokens, row.resident_tokens));
    cell(grouped(row.bound_tokens));
    cell(times_text(row.planned_tokens, row.bound_tokens));
    out += "<td class=\"nw\">" + escaped(row.ended_by) + "</td>";
    cell(any ? format_duration_ns(row.step_ns) : "-");
    cell(any ? format_duration_ns(row.step_ns - row.compute_ns) : "-");
    cell(row.wait_ns > 0 ? format_duration_ns(row.wait_ns) : "-");
    cell(row.resident_peak_bytes > 0 ? format_bytes(row.resident_peak_bytes) : "-");
    cell(peak_text(row));
    out += "</tr>";
  }
  out +=
      "</table></div><p class=\"hint\"><span>Step, stall and wait are those of the longest planned "
      "context. Peaks are of device memory at the longest resident context, with everything on the "
      "device and with the smallest plan whose step is short enough.</span></p></div>";
}

}  // namespace

std::string times_text(std::uint64_t a, std::uint64_t b) {
  return b == 0 ? "-" : number(ratio(a, b), 2);
}

std::string render_contexts(const LongestContexts& contexts) {
  std::string out = detail::static_page_head("HyperOffload contexts", kStyle);
  out += "<h1>How long a context fits</h1><p class=\"sub\">" + escaped(contexts.about) +
         ". A step takes at most " + number(100 * contexts.overhead_max, 1) +
         " % longer than its ops. Simulated; found to one part in 64.</p>";
  std::uint64_t most = 0;
  for (const ContextRow& row : contexts.rows) {
    most = std::max({most, row.resident_tokens, row.planned_tokens, row.bound_tokens});
  }
  out += "<div class=\"card\"><h2>Longest context, in tokens of each sequence</h2>";
  for (const ContextRow& row : contexts.rows) {
    out += "<h3>" + escaped(row.hardware) + "</h3><div class=\"bars\">";
    add_bar(out, "resident", "var(--bare)", row.resident_tokens, most);
    add_bar(out, "planned", "var(--plan)", row.planned_tokens, most);
    add_bar(out, "lower bound allows", "var(--line)", row.bound_tokens, most);
    out += "</div>";
  }
  out += "</div>";
  add_table(out, contexts.rows);
  out += detail::kStaticPageTail;
  return out;
}

}  // namespace ho::analyzer
