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

/// A name that somebody gave, as libfabric calls it here.
std::string full_name(const std::string& named, std::span<const std::string> here) {
  if (is_in(here, named)) return named;
  if (named == "net" && is_in(here, "tcp")) return "tcp";
  const auto layered = std::find_if(here.begin(), here.end(), [&](const std::string& name) {
    return name.rfind(named + ";", 0) == 0;
  });
  return layered == here.end() ? named : *layered;
}

}  // namespace

bool runs_over_tcp(const std::string& provider) {
  const std::string core = provider.substr(0, provider.find(';'));
  return is_tcp(core) || core == "sockets";
}

bool separates_tenants(const std::string& provider) { return is_tcp(provider); }

// "verbs;ofi_rxd" and "efa" copy in software as well.
bool serves_by_device(const std::string& provider) { return provider == "verbs;ofi_rxm"; }

Result<std::string> choose_provider(const std::string& named, std::span<const std::string> here) {
  if (!named.empty()) return full_name(named, here);
  for (const char* const name : kTcpProviders) {
    if (is_in(here, name)) return std::string(name);
  }
  return Error(Errc::kUnsupported, "libfabric has no provider \"net\" or \"tcp\" here");
}

Result<std::string> choose_provider_towards(const std::string& theirs, const std::string& named,
                                            std::span<const std::string> here) {
  const auto speaks_theirs = [&](const std::string& name) {
    return name == theirs || (is_tcp(name) && is_tcp(theirs));
  };
  if (!named.empty()) {
    std::string ours = full_name(named, here);
    if (speaks_theirs(ours)) return ours;
    return Error(Errc::kInvalidArgument, "the peer speaks '" + theirs + "', not '" + ours + "'");
  }
  if (is_in(here, theirs)) return theirs;
  const auto alike = std::find_if(here.begin(), here.end(), speaks_theirs);
  return alike == here.end() ? theirs : *alike;
}

}  // namespace ho::transport
