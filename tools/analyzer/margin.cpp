#include "tools/analyzer/margin.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/check.hpp"
#include "tools/simulator/simulate.hpp"

namespace ho::analyzer {
namespace {

constexpr std::uint64_t kStallShare = 50;  // 1/50 = 2 %

/// Whether the stall stays below 2 % of the compute time.
bool hidden(const schedule::Schedule& schedule, const Hardware& hardware) {
  const auto run = steady_period(schedule, hardware);
  if (!run) return false;
  return run->stall_ns <= (run->step_ns - run->stall_ns) / kStallShare;
}

/// The lowest of 1.0, 0.9, ... 0.1 up to which `holds` is true, as it is for 1.0.
template <typename Holds>
double every_tenth(Holds&& holds) {
  int tenths = 9;
  while (tenths > 0 && holds(tenths / 10.0)) --tenths;
  return (tenths + 1) / 10.0;
}

/// The same where `holds` is true for all above one that it is true for; another such tenth else.
template <typename Holds>
double by_halves(Holds&& holds) {
  int fails = 0;  // is not tried
  int does = 10;
  while (does - fails > 1) {
    const int middle = (fails + does) / 2;
    (holds(middle / 10.0) ? does : fails) = middle;
  }
  return does / 10.0;
}

void scale(Link& link, double factor) {
  const double scaled = static_cast<double>(link.bytes_per_s) * factor;
  link.bytes_per_s = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(scaled));
}

/// The hardware on which a step stalls for the same share of it as with every op's duration times
/// `factor`: its links are slower instead, in bandwidth and latency. A copy of the schedule with
/// other durations would need the most memory.
Hardware as_if_ops_took(Hardware hardware, double factor) {
  hardware = with_bandwidth(std::move(hardware), factor);
  const auto lengthen = [factor](Link& link) {
    link.latency_ns =
        static_cast<std::uint64_t>(std::ceil(static_cast<double>(link.latency_ns) / factor));
  };
  for (auto* tier : {&hardware.local_ddr, &hardware.remote_ddr, &hardware.flash}) {
    if (!*tier) continue;
    lengthen((*tier)->read);
    lengthen((*tier)->write);
  }
  if (hardware.device_port_read) lengthen(*hardware.device_port_read);
  if (hardware.device_port_write) lengthen(*hardware.device_port_write);
  return hardware;
}

}  // namespace

Hardware with_bandwidth(Hardware hardware, double factor) {
  HO_CHECK(factor > 0);
  for (auto* tier : {&hardware.local_ddr, &hardware.remote_ddr, &hardware.flash}) {
    if (!*tier) continue;
    scale((*tier)->read, factor);
    scale((*tier)->write, factor);
  }
  if (hardware.device_port_read) scale(*hardware.device_port_read, factor);
  if (hardware.device_port_write) scale(*hardware.device_port_write, factor);
  return hardware;
}

Hardware for_rank(Hardware hardware, std::uint32_t ranks) {
  HO_CHECK(ranks > 0);
  for (auto* tier : {&hardware.local_ddr, &hardware.remote_ddr, &hardware.flash}) {
    if (!*tier) continue;
    (*tier)->capacity_bytes /= ranks;
    scale((*tier)->read, 1.0 / ranks);
    scale((*tier)->write, 1.0 / ranks);
  }
  return hardware;
}

Margin margin_of(const schedule::Schedule& schedule) {
  Margin out;
  if (!hidden(schedule, schedule.hardware)) return out;
  const auto lowest = [&](const auto& holds) {
    return schedule.positions.size() <= kEveryTenthMax ? every_tenth(holds) : by_halves(holds);
  };
  out.bandwidth = lowest(
      [&](double factor) { return hidden(schedule, with_bandwidth(schedule.hardware, factor)); });
  out.op_time = lowest(
      [&](double factor) { return hidden(schedule, as_if_ops_took(schedule.hardware, factor)); });
  return out;
}

}  // namespace ho::analyzer
