#include "common/model/links.hpp"

#include <algorithm>
#include <limits>

#include "common/base/check.hpp"

namespace ho {

__extension__ using Wide = unsigned __int128;

std::int64_t transfer_ns(const Link& link, std::uint64_t bytes) {
  HO_CHECK(link.bytes_per_s > 0);
  constexpr std::uint64_t kNsPerS = 1'000'000'000;
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max() / 1024);
  // Almost all sizes fit 64 bits; a division of 128 bits takes several times as long.
  if (bytes <= UINT64_MAX / kNsPerS / 2 && link.bytes_per_s <= UINT64_MAX / 2) {
    const std::uint64_t moving = (bytes * kNsPerS + (link.bytes_per_s - 1)) / link.bytes_per_s;
    return static_cast<std::int64_t>(
        std::min(std::min(moving, kMax) + std::min(link.latency_ns, kMax), kMax));
  }
  const Wide scaled = static_cast<Wide>(bytes) * kNsPerS + (link.bytes_per_s - 1);
  const Wide total = scaled / link.bytes_per_s + link.latency_ns;
  return static_cast<std::int64_t>(std::min<Wide>(total, kMax));
}

Link effective_link(const Link& link, const std::optional<Link>& port) {
  if (!port) return link;
  return {std::min(link.bytes_per_s, port->bytes_per_s),
          std::max(link.latency_ns, port->latency_ns)};
}

double round_trip_ns(const Hardware& hardware, std::uint64_t bytes) {
  double sum_ns = 0;
  const auto add = [&](const Link& link) {
    HO_CHECK(link.bytes_per_s > 0);
    sum_ns += static_cast<double>(link.latency_ns) +
              static_cast<double>(bytes) * 1e9 / static_cast<double>(link.bytes_per_s);
  };
  for (const auto* tier : {&hardware.local_ddr, &hardware.remote_ddr}) {
    if (!*tier) continue;
    add(effective_link((*tier)->read, hardware.device_port_read));
    add(effective_link((*tier)->write, hardware.device_port_write));
  }
  if (hardware.flash) {
    add(hardware.flash->read);
    add(hardware.flash->write);
  }
  return sum_ns;
}

}  // namespace ho
