#include "daemon/targets.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "common/base/log.hpp"
#include "common/base/unique_fd.hpp"
#include "common/transport/driver_names.hpp"
#include "common/transport/local/local_transport.hpp"
#include "common/transport/ofi/ofi_transport.hpp"
#include "common/transport/ucx/loader/ucx_module.hpp"

namespace ho::daemon {
namespace {

using MadeTarget = Result<std::unique_ptr<transport::Target>>;

bool allows(const DaemonConfig& config, std::string_view driver) {
  const auto& names = config.transport;
  return names.empty() || std::find(names.begin(), names.end(), driver) != names.end();
}

bool wants(const DaemonConfig& config, std::string_view driver) {
  if (driver == "ofi") return !config.ofi.empty();
  if (driver == "ucx") return config.ucx.has_value();
  return true;
}

MadeTarget make_ofi(const std::vector<OfiSettings>& rails, const std::shared_ptr<Tally>& refusals) {
  transport::OfiTargetOptions options;
  options.provider = rails.front().provider.text;
  options.rails.clear();
  options.refusals = refusals;
  for (const OfiSettings& settings : rails) {
    transport::OfiRail rail;
    rail.domain = settings.domain.text;
    rail.bind_address = settings.address.text;
    if (!settings.interface.text.empty()) {
      auto address = transport::interface_address(settings.interface.text);
      if (!address) return address.error();
      rail.bind_address = std::move(*address);
    }
    options.rails.push_back(std::move(rail));
  }
  return transport::make_ofi_target(options);
}

MadeTarget make_target(const DaemonConfig& config, std::string_view driver,
                       const std::shared_ptr<Tally>& refusals) {
  if (driver == "ofi") return make_ofi(config.ofi, refusals);
  if (driver == "ucx") {
    return transport::make_ucx_target({config.ucx->devices, config.ucx->transports,
                                       config.ucx->module, config.ucx->allow_emulation});
  }
  return transport::make_local_target();
}

/// Whether something may listen at an IP address here. @return kInvalidArgument.
Result<void> check_own_address(const std::string& text) {
  sockaddr_storage where{};
  auto* const v4 = reinterpret_cast<sockaddr_in*>(&where);
  auto* const v6 = reinterpret_cast<sockaddr_in6*>(&where);
  socklen_t length = 0;
  if (::inet_pton(AF_INET, text.c_str(), &v4->sin_addr) == 1) {
    where.ss_family = AF_INET;
    length = sizeof *v4;
  } else if (::inet_pton(AF_INET6, text.c_str(), &v6->sin6_addr) == 1) {
    where.ss_family = AF_INET6;
    length = sizeof *v6;
  }
  const UniqueFd fd(::socket(where.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return errno_error(errno, text);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&where), length) == 0) return {};
  return Error(Errc::kInvalidArgument, text + " is not an address of this machine");
}

std::optional<ConfigMistake> find_mistake(const OfiSettings& ofi) {
  const auto mistake = [](const Located& where, std::string_view field, const Error& error) {
    return ConfigMistake{where.line, error.at("ofi: " + std::string(field))};
  };
  if (const auto known = transport::check_ofi_provider(ofi.provider.text); !known) {
    return mistake(ofi.provider, "provider", known.error());
  }
  if (!ofi.domain.text.empty()) {
    const auto known = transport::check_ofi_domain(ofi.provider.text, ofi.domain.text);
    if (!known) return mistake(ofi.domain, "domain", known.error());
  }
  if (!ofi.interface.text.empty()) {
    const auto known = transport::interface_address(ofi.interface.text);
    if (!known) return mistake(ofi.interface, "interface", known.error());
  }
  if (!ofi.address.text.empty()) {
    const auto own = check_own_address(ofi.address.text);
    if (!own) return mistake(ofi.address, "address", own.error());
  }
  return std::nullopt;
}

}  // namespace

Result<Targets> make_targets(const DaemonConfig& config, const std::shared_ptr<Tally>& refusals) {
  Targets made;
  for (const std::string_view driver : transport::kDriverNames) {
    const std::string name(driver);
    if (!allows(config, driver)) {
      made.off.push_back({name, "forbidden by its configuration"});
      continue;
    }
    if (!wants(config, driver)) continue;
    auto target = make_target(config, driver, refusals);
    if (target) {
      made.targets.push_back(std::move(*target));
      continue;
    }
    const Error& error = target.error();
    const bool may_lack = driver == "ucx" && config.transport.empty();
    if (!may_lack || error.code() != Errc::kUnsupported) return error.at(driver);
    // A node that lost its device still serves by its other drivers, and says what is missing.
    log(LogLevel::kWarning, "running without ucx", {{"why", error.context()}});
    made.off.push_back({name, error.context()});
  }
  return made;
}

std::optional<ConfigMistake> find_ofi_mistake(const DaemonConfig& config) {
  if (!allows(config, "ofi")) return std::nullopt;
  for (const OfiSettings& rail : config.ofi) {
    if (auto mistake = find_mistake(rail)) return mistake;
  }
  return std::nullopt;
}

}  // namespace ho::daemon
