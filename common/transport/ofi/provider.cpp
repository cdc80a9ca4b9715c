#include "common/transport/ofi/provider.hpp"

#include <arpa/inet.h>
#include <rdma/fi_errno.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <set>
#include <vector>

#include "common/base/check.hpp"
#include "common/transport/ofi/ofi_transport.hpp"
#include "common/transport/ofi/provider_names.hpp"

namespace ho::transport {
namespace {

std::string joined(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "none" : text;
}

/// Everything that serves the hints, in libfabric's order; nullptr: nothing, `returned` says why.
InfoHandle all_infos(const fi_info* hints, const Wanted& wanted, int& returned) {
  fi_info* list = nullptr;
  returned = fi_getinfo(kFabricVersion, wanted.node, wanted.service, wanted.flags, hints, &list);
  return InfoHandle(list);
}

std::set<std::string> domains_of(const fi_info* list) {
  std::set<std::string> names;
  for (; list != nullptr; list = list->next) {
    if (list->domain_attr->name != nullptr) names.insert(list->domain_attr->name);
  }
  return names;
}

}  // namespace

Result<InfoHandle> common_hints(const std::string& provider) {
  if (const auto there = open_libfabric(); !there) return there.error();
  InfoHandle hints(fi_allocinfo());
  if (!hints) return Error(Errc::kExhausted, "fi_allocinfo");
  hints->ep_attr->type = FI_EP_RDM;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->domain_attr->mr_mode =
      FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
  hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
  if (!provider.empty()) {
    hints->fabric_attr->prov_name = ::strdup(provider.c_str());  // freed by fi_freeinfo
  }
  return hints;
}

namespace {

Emulation emulation_of(bool allowed) {
  return allowed ? Emulation::kAllowed : Emulation::kForbidden;
}

/// The named ones that have our kind of endpoint on this machine, as libfabric calls them
/// then ("tcp" may be "tcp;ofi_rxm"). Without a name: the devices' and TCP's.
Result<std::vector<std::string>> providers_here(const std::string& named) {
  std::vector<std::string> asked(kTcpProviders.begin(), kTcpProviders.end());
  if (named.empty()) asked.insert(asked.begin(), kDeviceProviders.begin(), kDeviceProviders.end());
  if (!named.empty() && named != "net") asked = {named};  // "net" may be "tcp" here
  std::vector<std::string> names;
  for (const std::string& name : asked) {
    const auto hints = common_hints(name);
    if (!hints) return hints.error();
    (*hints)->caps = FI_RMA;
    int returned = 0;
    const InfoHandle found = all_infos(hints->get(), {}, returned);
    for (const fi_info* one = found.get(); one != nullptr; one = one->next) {
      const std::string full = one->fabric_attr->prov_name;
      if (std::find(names.begin(), names.end(), full) == names.end()) names.push_back(full);
    }
  }
  return names;
}

}  // namespace

Result<std::string> provider_here(const std::string& named, bool allow_emulation) {
  const auto here = providers_here(named);
  if (!here) return here.error();
  return choose_provider(named, *here, emulation_of(allow_emulation));
}

Result<std::string> provider_towards(const std::string& theirs, const std::string& named,
                                     bool allow_emulation) {
  const auto here = providers_here(named.empty() ? theirs.substr(0, theirs.find(';')) : named);
  if (!here) return here.error();
  return choose_provider_towards(theirs, named, *here, emulation_of(allow_emulation));
}

Result<std::string> libfabric_tcp() {
  const auto here = providers_here("net");
  if (!here) return here.error();
  return choose_provider("net", *here, Emulation::kAllowed);
}

Result<InfoHandle> choose_info(const fi_info& hints, const Wanted& wanted) {
  HO_CHECK(hints.fabric_attr->prov_name != nullptr);
  const std::string provider = hints.fabric_attr->prov_name;
  int returned = 0;
  const InfoHandle list = all_infos(&hints, wanted, returned);
  if (returned != 0) {
    Error error = fabric_error(returned, "no usable libfabric provider '" + provider + "'");
    if (returned == -FI_ENODATA) return Error(Errc::kUnsupported, error.context());
    return error;
  }
  // Where "tcp" has such endpoints of its own, libfabric also offers them as "tcp;ofi_rxm".
  const auto is_named = [&](const fi_info& one) { return provider == one.fabric_attr->prov_name; };
  bool exact = false;
  for (const fi_info* one = list.get(); one != nullptr; one = one->next) exact |= is_named(*one);
  for (const fi_info* one = list.get(); one != nullptr; one = one->next) {
    if (exact && !is_named(*one)) continue;
    const char* const domain = one->domain_attr->name;
    if (!wanted.domain.empty() && (domain == nullptr || wanted.domain != domain)) continue;
    InfoHandle chosen(fi_dupinfo(one));
    if (!chosen) return Error(Errc::kExhausted, "fi_dupinfo");
    return chosen;
  }
  return Error(Errc::kUnsupported, "'" + provider + "' has no domain '" + wanted.domain +
                                       "' for this; it has " + joined(domains_of(list.get())));
}

Result<void> check_ofi_provider(const std::string& provider, bool allow_emulation) {
  const auto chosen = provider_here(provider, allow_emulation);
  if (!chosen) return chosen.error();
  const auto here = providers_here(provider);
  if (!here) return here.error();
  if (provider.empty() || !here->empty()) return {};
  // A user who mistyped a name sees the right ones.
  const auto any = common_hints("");
  if (!any) return any.error();
  (*any)->caps = FI_RMA;
  int returned = 0;
  const InfoHandle all = all_infos(any->get(), {}, returned);
  std::set<std::string> names;
  for (const fi_info* one = all.get(); one != nullptr; one = one->next) {
    names.insert(one->fabric_attr->prov_name);
  }
  return Error(Errc::kUnsupported, "libfabric has no usable provider \"" + provider +
                                       "\" here; it has " + joined(names));
}

Result<void> check_ofi_domain(const std::string& provider, bool allow_emulation,
                              const std::string& domain) {
  const auto chosen = provider_here(provider, allow_emulation);
  if (!chosen) return chosen.error();
  const auto hints = common_hints(*chosen);
  if (!hints) return hints.error();
  (*hints)->caps = FI_RMA;
  int returned = 0;
  const InfoHandle all = all_infos(hints->get(), {}, returned);
  const std::set<std::string> names = domains_of(all.get());
  if (names.count(domain) > 0) return {};
  return Error(Errc::kNotFound, "\"" + *chosen + "\" has no domain \"" + domain +
                                    "\" here; it has " + joined(names));
}

Result<std::string> source_name(const std::string& address, std::uint32_t format) {
  sockaddr_in v4{};
  sockaddr_in6 v6{};
  const bool either = format == FI_SOCKADDR;
  if ((either || format == FI_SOCKADDR_IN) &&
      ::inet_pton(AF_INET, address.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    return std::string(reinterpret_cast<const char*>(&v4), sizeof v4);
  }
  if ((either || format == FI_SOCKADDR_IN6) &&
      ::inet_pton(AF_INET6, address.c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    return std::string(reinterpret_cast<const char*>(&v6), sizeof v6);
  }
  return Error(Errc::kInvalidArgument,
               address + " is not of the kind that the target's address is");
}

}  // namespace ho::transport
