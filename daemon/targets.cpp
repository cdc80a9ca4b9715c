#include "daemon/targets.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/base/log.hpp"
#include "common/net/address.hpp"
#include "common/transport/driver_names.hpp"
#include "common/transport/local/local_transport.hpp"
#include "common/transport/ofi/ofi_transport.hpp"
#include "common/transport/tcp/tcp_transport.hpp"
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
  if (driver == "tcp") return !config.tcp.empty();
  if (driver == "ucx") return config.ucx.has_value();
  return true;
}

MadeTarget make_ofi(const std::vector<OfiSettings>& rails) {
  transport::OfiTargetOptions options;
  options.provider = rails.front().provider.text;
  options.allow_emulation = rails.front().allow_emulation;
  options.rails.clear();
  for (const OfiSettings& settings : rails) {
    transport::OfiListen rail{settings.domain.text, settings.address.text};
    if (!settings.interface.text.empty()) {
      auto address = net::interface_address(settings.interface.text);
      if (!address) return address.error();
      rail.address = std::move(*address);
    }
    options.rails.push_back(std::move(rail));
  }
  return transport::make_ofi_target(options);
}

MadeTarget make_tcp(const std::vector<TcpSettings>& rails, transport::TcpTargetOptions options) {
  options.rails.clear();
  for (const TcpSettings& settings : rails) {
    transport::TcpRail rail{settings.address.text, settings.port, settings.link_bytes_per_s};
    if (!settings.interface.text.empty()) {
      auto address = net::interface_address(settings.interface.text);
      if (!address) return address.error();
      rail.address = std::move(*address);
    }
    options.rails.push_back(std::move(rail));
  }
  return transport::make_tcp_target(options);
}

/// @param tcp  of `tcp`, without its rails.
MadeTarget make_target(const DaemonConfig& config, std::string_view driver,
                       const transport::TcpTargetOptions& tcp) {
  if (driver == "tcp") return make_tcp(config.tcp, tcp);
  if (driver == "ofi") return make_ofi(config.ofi);
  if (driver == "ucx") {
    return transport::make_ucx_target({config.ucx->devices, config.ucx->transports,
                                       config.ucx->module, config.ucx->allow_emulation});
  }
  return transport::make_local_target();
}

std::optional<ConfigMistake> find_mistake(const OfiSettings& ofi) {
  const auto mistake = [](const Located& where, std::string_view field, const Error& error) {
    return ConfigMistake{where.line, error.at("ofi: " + std::string(field))};
  };
  const auto provider = transport::check_ofi_provider(ofi.provider.text, ofi.allow_emulation);
  if (!provider) return mistake(ofi.provider, "provider", provider.error());
  if (!ofi.domain.text.empty()) {
    const auto known =
        transport::check_ofi_domain(ofi.provider.text, ofi.allow_emulation, ofi.domain.text);
    if (!known) return mistake(ofi.domain, "domain", known.error());
  }
  if (!ofi.interface.text.empty()) {
    const auto known = net::interface_address(ofi.interface.text);
    if (!known) return mistake(ofi.interface, "interface", known.error());
  }
  if (!ofi.address.text.empty()) {
    const auto own = net::check_own_address(ofi.address.text);
    if (!own) return mistake(ofi.address, "address", own.error());
  }
  return std::nullopt;
}

std::optional<ConfigMistake> find_mistake(const TcpSettings& tcp) {
  const bool named = !tcp.interface.text.empty();
  const Located& where = named ? tcp.interface : tcp.address;
  const auto known = named ? net::interface_address(where.text) : Result<std::string>(where.text);
  const auto own = known ? net::check_own_address(*known) : known.error();
  if (own) return std::nullopt;
  return ConfigMistake{where.line, own.error().at(named ? "tcp: interface" : "tcp: address")};
}

}  // namespace

Result<Targets> make_targets(const DaemonConfig& config, const std::shared_ptr<Tally>& refusals,
                             const std::shared_ptr<tls::ContextSlot>& tls) {
  Targets made;
  transport::TcpTargetOptions tcp;
  tcp.refusals = refusals;
  tcp.tls = tls;
  tcp.traffic = std::make_shared<transport::Traffic>();
  for (const std::string_view driver : transport::kDriverNames) {
    const std::string name(driver);
    if (!allows(config, driver)) {
      made.off.push_back({name, "forbidden by its configuration"});
      continue;
    }
    if (!wants(config, driver)) continue;
    auto target = make_target(config, driver, tcp);
    if (target) {
      if (driver == "tcp") made.tcp_traffic = tcp.traffic;
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

std::optional<ConfigMistake> find_rail_mistake(const DaemonConfig& config) {
  if (allows(config, "tcp")) {
    for (const TcpSettings& rail : config.tcp) {
      if (auto mistake = find_mistake(rail)) return mistake;
    }
  }
  if (allows(config, "ofi")) {
    for (const OfiSettings& rail : config.ofi) {
      if (auto mistake = find_mistake(rail)) return mistake;
    }
  }
  return std::nullopt;
}

}  // namespace ho::daemon
