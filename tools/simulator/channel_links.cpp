#include "tools/simulator/channel_links.hpp"

#include <algorithm>
#include <string>

namespace ho::analyzer {

Result<ChannelLinks> ChannelLinks::create(const Hardware& hardware) {
  ChannelLinks out;
  if (hardware.local_ddr) {
    out.links[0] = hardware.local_ddr->read;
    out.links[1] = hardware.local_ddr->write;
  }
  if (hardware.remote_ddr) {
    out.links[2] = hardware.remote_ddr->read;
    out.links[3] = hardware.remote_ddr->write;
  }
  if (hardware.flash) {
    out.links[4] = hardware.flash->read;
    out.links[5] = hardware.flash->write;
  }
  out.ports = {hardware.device_port_read, hardware.device_port_write};
  for (unsigned channel = 0; channel < kChannelCount; ++channel) {
    auto& link = out.links[channel];
    if (!link) continue;
    const auto& port = channel < kPortChannelCount ? out.ports[channel % 2] : std::nullopt;
    if (link->bytes_per_s == 0 || (port && port->bytes_per_s == 0)) {
      return Error{Errc::kInvalidArgument,
                   "hardware: " + std::string(kChannelNames[channel]) + " has no bandwidth"};
    }
    if (port) link->latency_ns = std::max(link->latency_ns, port->latency_ns);
  }
  return out;
}

Result<unsigned> ChannelLinks::channel(schedule::HomeTier tier, schedule::CacheOpKind kind) const {
  const unsigned first = 2 * (static_cast<unsigned>(tier) - 1);
  const unsigned channel = first + (schedule::moves_toward_device(kind) ? 0 : 1);
  if (channel < kChannelCount && links[channel]) return channel;
  return Error{Errc::kInvalidArgument, "the hardware has no tier " +
                                           std::string(schedule::home_tier_name(tier)) +
                                           ", which the schedule uses"};
}

}  // namespace ho::analyzer
