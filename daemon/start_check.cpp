#include "daemon/start_check.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "daemon/control/access.hpp"
#include "daemon/control/listener.hpp"
#include "daemon/flash_start.hpp"
#include "daemon/memory_start.hpp"
#include "daemon/protection.hpp"
#include "daemon/targets.hpp"
#include "daemon/tier/flash/device/uring/open_path.hpp"
#include "daemon/tier/flash/device/uring/uring_device.hpp"
#include "daemon/tier/flash/log/path_set.hpp"
#include "proto/control/control_address.hpp"

namespace ho::daemon {

namespace {

/// The unit's RuntimeDirectory: systemd makes it at each start.
constexpr const char* kRuntimeFolder = "/run/hyperoffload";

Result<void> check_socket(const std::string& path) {
  const std::string folder = path.substr(0, std::max<std::size_t>(path.rfind('/'), 1));
  struct stat info {};
  const bool there = ::stat(folder.c_str(), &info) == 0;
  if (!there && folder == kRuntimeFolder) return {};
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

/// Paths that this process has are locked.
Result<void> check_next_flash(const DaemonConfig& next, const DaemonConfig& now) {
  if (!flash::check_uring()) return {};
  std::vector<FlashPathSettings> fresh;
  for (const FlashPathSettings& path : next.flash) {
    const bool had = std::any_of(now.flash.begin(), now.flash.end(),
                                 [&](const auto& one) { return one.path == path.path; });
    if (!had) {
      fresh.push_back(path);
    } else if (auto usable = flash::check_path(path.path); !usable) {
      return usable;
    }
  }
  if (fresh.empty()) return {};
  const auto device = make_flash_device(fresh, flash::DeviceMode::kTrial);
  return device ? Result<void>() : device.error();
}

/// Ports, except those that a daemon has which runs with `now`.
Result<void> check_ports(const DaemonConfig& config, const DaemonConfig* now) {
  const auto check = [&](const auto& listen, const auto& had, const char* field) -> Result<void> {
    if (!listen || listen == had) return {};
    const auto listened = check_tcp(*listen, field);
    return listened ? Result<void>() : config.at_field(field, listened.error());
  };
  const DaemonConfig none;
  const DaemonConfig& last = now != nullptr ? *now : none;
  if (auto ok = check(config.tcp_listen, last.tcp_listen, "tcp_listen"); !ok) return ok;
  if (auto ok = check(config.http_listen, last.http_listen, "http_listen"); !ok) return ok;
  for (const TcpSettings& rail : config.tcp) {
    if (rail.port == 0 || rail.address.text.empty()) continue;
    const bool had = std::any_of(last.tcp.begin(), last.tcp.end(), [&](const TcpSettings& one) {
      return one.port == rail.port && one.address.text == rail.address.text;
    });
    if (had) continue;
    const auto listened = check_tcp({rail.address.text, std::to_string(rail.port)}, "tcp");
    if (listened) continue;
    return listened.error().at(config.file + ":" + std::to_string(rail.address.line));
  }
  return {};
}

/// check_machine() and check_start(), for what a daemon does not have that runs with `now`. Also
/// its users must be known, without which it would start and let nobody in.
Result<void> check_follower(const DaemonConfig& next, const DaemonConfig& now,
                            const HeldPages& held) {
  if (auto able = check_machine(next, held); !able) return able;
  if (auto socket = check_socket(next.unix_socket); !socket) {
    return next.at_field("unix_socket", socket.error().at("unix_socket"));
  }
  if (auto free = check_ports(next, &now); !free) return free;
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
  if (const auto tls = load_tls(config); !tls) return config.at_field("tls", tls.error());
  if (const auto mistake = find_rail_mistake(config)) {
    return mistake->error.at(config.file + ":" + std::to_string(mistake->line));
  }
  return {};
}

Result<void> check_start(const DaemonConfig& config, std::string& skipped) {
  if (auto socket = check_socket(config.unix_socket); !socket) {
    return config.at_field("unix_socket", socket.error().at("unix_socket"));
  }
  ControlAddress own;
  own.path = config.unix_socket;
  if (dial(own, std::chrono::steady_clock::now() + std::chrono::seconds(1))) {
    skipped = "memory, ports and flash, for a daemon runs here already";
    return {};
  }
  if (auto free = check_reserve(config); !free) return config.at_field("ddr_reserve", free.error());
  if (auto free = check_ports(config, nullptr); !free) return free;
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
    held.bytes = pool.options().capacity_bytes;  // granted, or free
    for (const NumaShare& share : pool.numa()) held.by_node[share.node] = share.capacity_bytes;
  }
  const auto could = check_follower(next, now, held);
  return could ? could : could.error().at("the next daemon could not start");
}

}  // namespace ho::daemon
