#include "daemon/node_options.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/log.hpp"
#include "common/transport/ucx/loader/rdma_devices.hpp"

namespace ho::daemon {

namespace {

/// A session takes so many for each rail of `tcp`, unless its job asks for more connections.
constexpr std::size_t kTcpDescriptors = 2;
/// And so many for each device of `ucx`: measured with UCX 1.13 over soft-RoCE.
constexpr std::size_t kUcxDescriptors = 7;

std::size_t ucx_devices(const DaemonConfig& config) {
  if (!config.ucx) return 0;
  const std::string& names = config.ucx->devices;
  if (names.empty() || names == "all") return transport::active_rdma_devices().size();
  return 1 + static_cast<std::size_t>(std::count(names.begin(), names.end(), ','));
}

/// Sessions that half of this process's descriptors are enough for, each by one driver.
std::size_t sessions_for_descriptors(const DaemonConfig& config) {
  const std::size_t each =
      std::max(kTcpDescriptors * config.tcp.size(), kUcxDescriptors * ucx_devices(config));
  rlimit limit{};
  if (each == 0 || ::getrlimit(RLIMIT_NOFILE, &limit) != 0) return SIZE_MAX;
  return std::max<std::size_t>(limit.rlim_cur / 2 / each, 16);
}

}  // namespace

Result<std::string> read_boot_id() {
  std::ifstream in("/proc/sys/kernel/random/boot_id");
  std::string id;
  if (!(in >> id)) return Error(Errc::kIo, "/proc/sys/kernel/random/boot_id: cannot be read");
  return id;
}

Pool::Options pool_options(const DaemonConfig& config, std::vector<NumaShare> shares) {
  Pool::Options options;
  options.numa = std::move(shares);
  options.node = config.node;
  options.node_name = config.node_name;
  options.rack = config.rack;
  options.capacity_bytes = config.ddr_bytes;
  options.segment_bytes = config.segment_bytes;
  options.lease = config.lease;
  options.sessions_max = std::min(options.sessions_max, sessions_for_descriptors(config));
  return options;
}

Access known_access(const DaemonConfig& config) {
  std::vector<std::string> unknown;
  auto access = Access::create(config, &unknown);
  HO_CHECK(access.ok());
  for (const std::string& name : unknown) {
    log(LogLevel::kError, "access or quotas of the configuration are wrong", {{"error", name}});
  }
  return *std::move(access);
}

}  // namespace ho::daemon
