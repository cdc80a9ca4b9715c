#include "daemon/start_check.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "daemon/control/access.hpp"
#include "daemon/control/listener.hpp"
#include "daemon/flash_start.hpp"
#include "daemon/memory_start.hpp"
#include "daemon/protection.hpp"
#include "daemon/targets.hpp"
#include "daemon/tier/flash/device/cipher/path_key.hpp"
#include "daemon/tier/flash/device/uring/open_path.hpp"
#include "daemon/tier/flash/device/uring/uring_device.hpp"
#include "daemon/tier/flash/log/path_set.hpp"
#include "proto/control/control_address.hpp"

namespace ho::daemon {

namespace {

/// Whether systemd makes it at each start: RuntimeDirectory of the unit or of an instance of it.
bool is_runtime_folder(std::string_view folder) {
  constexpr std::string_view kUnit = "/run/hyperoffload";
  if (folder.substr(0, kUnit.size()) != kUnit) return false;
  const std::string_view instance = folder.substr(kUnit.size());
  return instance.empty() || (instance[0] == '-' && instance.find('/') == std::string_view::npos);
}

Result<void> check_socket(const std::string& path) {
  const std::string folder = path.substr(0, std::max<std::size_t>(path.rfind('/'), 1));
  struct stat info {};
  const bool there = ::stat(folder.c_str(), &info) == 0;
  if (!there && is_runtime_folder(folder)) return {};
  if (!there) return errno_error(errno, "folder " + folder);
  if (!S_ISDIR(info.st_mode)) return Error(Errc::kInvalidArgument, folder + " is not a folder");
  if (::stat(path.c_str(), &info) == 0 && !S_ISSOCK(info.st_mode)) {
    return Error(Errc::kConflict, path + " exists and is not a socket");
  }
  return {};
}

Result<void> check_flash(const DaemonConfig& config) {
  // Without io_uring a daemon runs without flash, and says so.
  if (config.flash.empty() || !flash::check_uring()) return {};
  auto device = make_flash_device(config.flash, flash::DeviceMode::kTrial);
  if (!device) return device.error();
  return flash::check_path_set(**device);
}

/// The running daemon has locked its paths, so they are not opened.
Result<void> check_next_flash(const DaemonConfig& next, const DaemonConfig& now) {
  if (now.flash.empty()) return check_flash(next);
  const auto same = [](const auto& a, const auto& b) { return a.path == b.path; };
  if (!std::equal(next.flash.begin(), next.flash.end(), now.flash.begin(), now.flash.end(), same)) {
    return Error(Errc::kConflict, "flash has other paths now: stop the daemon and start it");
  }
  for (const FlashPathSettings& path : next.flash) {
    if (auto usable = flash::check_path(path.path); !usable) return usable;
    if (path.key_file.empty()) continue;
    const auto key = flash::PathKey::read(path.key_file);
    if (!key) return key.error().at(path.path);
  }
  return {};
}

/// Ports of a daemon that runs with this configuration.
std::set<std::string> ports_of(const DaemonConfig& config) {
  std::set<std::string> out;
  if (config.tcp_listen) out.insert(config.tcp_listen->port);
  if (config.http_listen) out.insert(config.http_listen->port);
  for (const TcpSettings& rail : config.tcp) out.insert(std::to_string(rail.port));
  return out;
}

/// Whether the ports can be had. Leaves out `own`, those of the daemon that runs.
Result<void> check_ports(const DaemonConfig& config, const std::set<std::string>& own) {
  const auto check = [&](const std::optional<TcpListen>& listen,
                         const char* field) -> Result<void> {
    if (!listen || own.count(listen->port) > 0) return {};
    const auto listened = check_tcp(*listen, field);
    return listened ? Result<void>() : config.at_field(field, listened.error());
  };
  if (auto ok = check(config.tcp_listen, "tcp_listen"); !ok) return ok;
  if (auto ok = check(config.http_listen, "http_listen"); !ok) return ok;
  for (const TcpSettings& rail : config.tcp) {
    const std::string port = std::to_string(rail.port);
    if (rail.port == 0 || rail.address.text.empty() || own.count(port) > 0) continue;
    const auto listened = check_tcp({rail.address.text, port}, "tcp");
    if (listened) continue;
    return listened.error().at(config.file + ":" + std::to_string(rail.address.line));
  }
  return {};
}

/// A daemon that starts looks at them itself: one that takes over goes on where it can. @return
/// what load_tls() does.
Result<std::shared_ptr<const tls::Context>> check_certificates(const DaemonConfig& config) {
  auto own = load_tls(config);
  if (!own) return own;
  if (const auto etcd = check_etcd_tls(config); !etcd) return etcd.error();
  return own;
}

/// As check_machine() and check_start(), beside the running daemon, whose configuration is `now`.
/// Also the users must be known: without them the next daemon would start and let nobody in.
Result<void> check_follower(const DaemonConfig& next, const DaemonConfig& now,
                            const HeldPages& held) {
  if (auto able = check_machine(next, held); !able) return able;
  if (const auto usable = check_certificates(next); !usable) return usable.error();
  if (auto socket = check_socket(next.unix_socket); !socket) {
    return next.at_field("unix_socket", socket.error().at("unix_socket"));
  }
  if (auto free = check_ports(next, ports_of(now)); !free) return free;
  if (auto usable = check_next_flash(next, now); !usable) {
    return next.at_field("flash", usable.error());
  }
  const auto users = Access::create(next, nullptr);
  return users ? Result<void>() : users.error();
}

}  // namespace

Result<void> check_machine(const DaemonConfig& config, const HeldPages& held) {
  const auto pages = check_memory(config, held);
  if (!pages) return config.at_field("ddr_bytes", pages.error());
  if (const auto shares = check_numa(config, *pages, held); !shares) {
    return config.at_field("numa", shares.error());
  }
  if (const auto mistake = find_rail_mistake(config)) {
    return mistake->error.at(config.file + ":" + std::to_string(mistake->line));
  }
  return {};
}

Result<void> check_start(const DaemonConfig& config, StartNotes& notes) {
  const auto tls = check_certificates(config);
  if (!tls) return tls.error();
  notes.warning = find_certificate_fault(config, *tls);
  if (auto socket = check_socket(config.unix_socket); !socket) {
    return config.at_field("unix_socket", socket.error().at("unix_socket"));
  }
  ControlAddress own;
  own.path = config.unix_socket;
  if (dial(own, std::chrono::steady_clock::now() + std::chrono::seconds(1))) {
    notes.skipped = "memory, ports and flash, for a daemon runs here already";
    return {};
  }
  if (auto free = check_reserve(config); !free) return config.at_field("ddr_reserve", free.error());
  if (auto free = check_ports(config, {}); !free) return free;
  if (auto usable = check_flash(config); !usable) return config.at_field("flash", usable.error());
  return {};
}

Result<void> check_next(const DaemonConfig& next, const DaemonConfig& now, const Pool& pool,
                        PageKind pages) {
  for (const std::string& field : changed_fields(now, next)) {
    if (field != "node_id" && field != "segment_bytes") continue;
    return Error(Errc::kConflict, "the configuration has another " + field +
                                      " now, which an upgrade cannot change: stop the daemon and "
                                      "start it");
  }
  HeldPages held;
  if (pages == PageKind::kHugetlb2M) {
    held.bytes = now.ddr_reserve ? pool.options().capacity_bytes : pool.granted_bytes();
    for (const NumaShare& share : pool.numa()) {
      held.by_node[share.node] = now.ddr_reserve ? share.capacity_bytes : share.granted_bytes;
    }
  }
  const auto could = check_follower(next, now, held);
  return could ? could : could.error().at("the next daemon could not start");
}

}  // namespace ho::daemon
