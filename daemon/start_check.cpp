#include "daemon/start_check.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "daemon/control/listener.hpp"
#include "daemon/flash_start.hpp"
#include "daemon/memory_start.hpp"
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

}  // namespace

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
  if (config.tcp_listen) {
    const auto listened = check_tcp(*config.tcp_listen, "tcp_listen");
    if (!listened) return config.at_field("tcp_listen", listened.error());
  }
  if (config.http_listen) {
    const auto listened = check_tcp(*config.http_listen, "http_listen");
    if (!listened) return config.at_field("http_listen", listened.error());
  }
  for (const TcpSettings& rail : config.tcp) {
    if (rail.port == 0 || rail.address.text.empty()) continue;
    const auto listened = check_tcp({rail.address.text, std::to_string(rail.port)}, "tcp");
    if (listened) continue;
    return listened.error().at(config.file + ":" + std::to_string(rail.address.line));
  }
  if (auto usable = check_flash(config); !usable) return config.at_field("flash", usable.error());
  return {};
}

}  // namespace ho::daemon
