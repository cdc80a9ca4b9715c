#include <hardware.pb.h>

#include "common/model/check_graph.hpp"
#include "proto/convert.hpp"
#include "proto/convert_parts.hpp"
#include "proto/file.hpp"
#include "proto/message.hpp"

namespace ho {

namespace wire {

namespace v1 = hyperoffload::v1;

namespace {

Link link_from(const v1::Link& in) { return Link{in.bytes_per_s(), in.latency_ns()}; }

TierSpec tier_from(const v1::Tier& in) {
  return TierSpec{in.capacity_bytes(), link_from(in.read()), link_from(in.write())};
}

void link_to(const Link& link, v1::Link& out) {
  out.set_bytes_per_s(link.bytes_per_s);
  out.set_latency_ns(link.latency_ns);
}

void tier_to(const TierSpec& tier, v1::Tier& out) {
  out.set_capacity_bytes(tier.capacity_bytes);
  link_to(tier.read, *out.mutable_read());
  link_to(tier.write, *out.mutable_write());
}

}  // namespace

Hardware from_wire(const v1::Hardware& in) {
  Hardware hardware;
  hardware.name = in.name();
  hardware.device_bytes = in.device_bytes();
  if (in.has_local_ddr()) hardware.local_ddr = tier_from(in.local_ddr());
  if (in.has_remote_ddr()) hardware.remote_ddr = tier_from(in.remote_ddr());
  if (in.has_flash()) hardware.flash = tier_from(in.flash());
  if (in.has_device_port_read()) hardware.device_port_read = link_from(in.device_port_read());
  if (in.has_device_port_write()) hardware.device_port_write = link_from(in.device_port_write());
  return hardware;
}

void to_wire(const Hardware& hardware, v1::Hardware& out) {
  out.set_name(hardware.name);
  out.set_device_bytes(hardware.device_bytes);
  if (hardware.local_ddr) tier_to(*hardware.local_ddr, *out.mutable_local_ddr());
  if (hardware.remote_ddr) tier_to(*hardware.remote_ddr, *out.mutable_remote_ddr());
  if (hardware.flash) tier_to(*hardware.flash, *out.mutable_flash());
  if (hardware.device_port_read) {
    link_to(*hardware.device_port_read, *out.mutable_device_port_read());
  }
  if (hardware.device_port_write) {
    link_to(*hardware.device_port_write, *out.mutable_device_port_write());
  }
}

}  // namespace wire

Result<Hardware> parse_hardware(std::string_view bytes, GraphEncoding encoding,
                                const std::string& file) {
  hyperoffload::v1::Hardware message;
  if (auto parsed = wire::parse(bytes, encoding, message); !parsed) return parsed.error().at(file);
  Hardware hardware = wire::from_wire(message);
  if (auto checked = check_hardware(hardware); !checked) return checked.error().at(file);
  return hardware;
}

Result<Hardware> read_hardware_file(const std::string& path) {
  const auto encoding = wire::encoding_of(path);
  if (!encoding) return encoding.error();
  const auto bytes = read_whole_file(path, wire::kInputBytesMax);
  if (!bytes) return bytes.error();
  return parse_hardware(*bytes, *encoding, path);
}

namespace {

std::string serialize_hardware(const Hardware& hardware, GraphEncoding encoding) {
  hyperoffload::v1::Hardware message;
  wire::to_wire(hardware, message);
  return wire::serialize(message, encoding);
}

}  // namespace

std::string hardware_to_json(const Hardware& hardware) {
  return serialize_hardware(hardware, GraphEncoding::kJson);
}

Result<void> write_hardware_file(const Hardware& hardware, const std::string& path) {
  const auto encoding = wire::encoding_of(path);
  if (!encoding) return encoding.error();
  return write_whole_file(path, serialize_hardware(hardware, *encoding));
}

}  // namespace ho
