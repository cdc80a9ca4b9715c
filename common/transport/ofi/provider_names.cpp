#include "common/transport/ofi/provider_names.hpp"

#include <algorithm>

namespace ho::transport {
namespace {

bool is_in(std::span<const std::string> names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_tcp(const std::string& name) {
  return std::find(kTcpProviders.begin(), kTcpProviders.end(), name) != kTcpProviders.end();
}

bool is_device(const std::string& name) {
  const std::string core = name.substr(0, name.find(';'));
  return std::find(kDeviceProviders.begin(), kDeviceProviders.end(), core) !=
         kDeviceProviders.end();
}

/// A name that somebody gave, as libfabric calls it here.
std::string full_name(const std::string& named, std::span<const std::string> here) {
  if (is_in(here, named)) return named;
  if (named == "net" && is_in(here, "tcp")) return "tcp";
  const auto layered = std::find_if(here.begin(), here.end(), [&](const std::string& name) {
    return name.rfind(named + ";", 0) == 0;
  });
  return layered == here.end() ? named : *layered;
}

Result<std::string> unless_emulated(std::string name, Emulation emulation) {
  if (is_device(name) || emulation == Emulation::kAllowed) return name;
  return Error(
      Errc::kUnsupported,
      "\"" + name +
          "\" is not a provider of devices (cxi, efa and verbs are): it trusts what peers send, "
          "and needs allow_emulation; between nodes without RDMA use the driver tcp");
}

}  // namespace

// "verbs;ofi_rxd" and "efa" copy in software as well.
bool serves_by_device(const std::string& provider) { return provider == "verbs;ofi_rxm"; }

Result<std::string> choose_provider(const std::string& named, std::span<const std::string> here,
                                    Emulation emulation) {
  if (!named.empty()) return unless_emulated(full_name(named, here), emulation);
  for (const char* const device : kDeviceProviders) {
    const std::string name = full_name(device, here);
    if (is_in(here, name)) return name;
  }
  for (const char* const name : kTcpProviders) {
    if (emulation == Emulation::kAllowed && is_in(here, name)) return std::string(name);
  }
  return Error(Errc::kUnsupported,
               "libfabric has no device here (cxi, efa, verbs); between nodes without RDMA use the "
               "driver tcp");
}

Result<std::string> choose_provider_towards(const std::string& theirs, const std::string& named,
                                            std::span<const std::string> here,
                                            Emulation emulation) {
  const auto speaks_theirs = [&](const std::string& name) {
    return name == theirs || (is_tcp(name) && is_tcp(theirs));
  };
  if (!named.empty()) {
    std::string ours = full_name(named, here);
    if (speaks_theirs(ours)) return unless_emulated(std::move(ours), emulation);
    return Error(Errc::kInvalidArgument, "the peer speaks '" + theirs + "', not '" + ours + "'");
  }
  if (is_in(here, theirs)) return unless_emulated(theirs, emulation);
  const auto alike = std::find_if(here.begin(), here.end(), speaks_theirs);
  return unless_emulated(alike == here.end() ? theirs : *alike, emulation);
}

}  // namespace ho::transport
