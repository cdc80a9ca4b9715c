#include "tools/analyzer/margin.hpp"

#include <algorithm>

#include "common/base/check.hpp"
#include "tools/analyzer/simulate.hpp"

namespace ho::analyzer {
namespace {

constexpr std::uint64_t kStallShare = 50;  // 1/50 = 2 %

/// Whether the stall stays below 2 % of the compute time.
bool hidden(const schedule::Schedule& schedule, const Hardware& hardware) {
  const auto run = simulate(schedule, hardware, Policy::kPlanned);
  if (!run) return false;
  return run->stall_ns <= (run->step_ns - run->stall_ns) / kStallShare;
}

/// The lowest of 1.0, 0.9, ... 0.1 up to which `holds` is true; 0 if not even for 1.0.
template <typename Holds>
double lowest(Holds&& holds) {
  int tenths = 10;
  while (tenths > 0 && holds(tenths / 10.0)) --tenths;
  return tenths == 10 ? 0 : (tenths + 1) / 10.0;
}

void scale(Link& link, double factor) {
  const double scaled = static_cast<double>(link.bytes_per_s) * factor;
  link.bytes_per_s = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(scaled));
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
  out.bandwidth = lowest(
      [&](double factor) { return hidden(schedule, with_bandwidth(schedule.hardware, factor)); });
  if (out.bandwidth == 0) return out;
  schedule::Schedule faster = schedule;
  out.op_time = lowest([&](double factor) {
    for (std::size_t i = 0; i < schedule.ops.size(); ++i) {
      faster.ops[i].duration_ns =
          static_cast<std::uint64_t>(static_cast<double>(schedule.ops[i].duration_ns) * factor);
    }
    return hidden(faster, schedule.hardware);
  });
  return out;
}

}  // namespace ho::analyzer
