#include "proto/files/convert_parts.hpp"

#include <graph.pb.h>
#include <hardware.pb.h>

#include <string>

namespace ho::wire {

namespace v1 = hyperoffload::v1;

Result<Storage> from_wire(const v1::Storage& in) {
  if (!v1::Kind_IsValid(in.kind())) {
    return Error(Errc::kInvalidArgument, "kind " + std::to_string(in.kind()) + " is unknown");
  }
  Storage storage;
  storage.id = in.id();
  storage.name = in.name();
  storage.bytes = in.bytes();
  storage.kind = static_cast<StorageKind>(in.kind());
  storage.persistent = in.persistent() || storage.kind == StorageKind::kOutput;
  storage.pinned = in.pinned();
  if (!v1::Hint_IsValid(in.hint())) {
    return Error(Errc::kInvalidArgument, "hint " + std::to_string(in.hint()) + " is unknown");
  }
  storage.hint = static_cast<OffloadHint>(in.hint());
  storage.copies = in.copies();
  return storage;
}

void to_wire(const Storage& storage, v1::Storage& out) {
  out.set_id(storage.id);
  out.set_name(storage.name);
  out.set_bytes(storage.bytes);
  out.set_kind(static_cast<v1::Kind>(storage.kind));
  out.set_persistent(storage.persistent);
  out.set_pinned(storage.pinned);
  out.set_hint(static_cast<v1::Hint>(storage.hint));
  out.set_copies(storage.copies);
}

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
  hardware.failure_domains = in.failure_domains();
  if (in.has_device_port_write()) hardware.device_port_write = link_from(in.device_port_write());
  for (const v1::SharedLink& link : in.links()) {
    hardware.links.push_back({link.name(), link.read_bytes_per_s(), link.write_bytes_per_s()});
  }
  for (const v1::RankPath& path : in.paths()) {
    hardware.paths.push_back({{path.local_ddr().begin(), path.local_ddr().end()},
                              {path.remote_ddr().begin(), path.remote_ddr().end()},
                              {path.flash().begin(), path.flash().end()}});
  }
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
  out.set_failure_domains(hardware.failure_domains);
  if (hardware.device_port_write) {
    link_to(*hardware.device_port_write, *out.mutable_device_port_write());
  }
  for (const SharedLink& link : hardware.links) {
    v1::SharedLink& to = *out.add_links();
    to.set_name(link.name);
    to.set_read_bytes_per_s(link.read_bytes_per_s);
    to.set_write_bytes_per_s(link.write_bytes_per_s);
  }
  for (const RankPath& path : hardware.paths) {
    v1::RankPath& to = *out.add_paths();
    to.mutable_local_ddr()->Assign(path.local_ddr.begin(), path.local_ddr.end());
    to.mutable_remote_ddr()->Assign(path.remote_ddr.begin(), path.remote_ddr.end());
    to.mutable_flash()->Assign(path.flash.begin(), path.flash.end());
  }
}

}  // namespace ho::wire
