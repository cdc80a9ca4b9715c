#include "common/transport/ucx/loader/rdma_devices.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <tuple>

namespace ho::transport {
namespace {

constexpr const char* kDevicesFolder = "/sys/class/infiniband";

bool is_software(const std::filesystem::path& device) {
  std::error_code error;
  return !std::filesystem::exists(device / "device", error);
}

}  // namespace

std::vector<RdmaDevice> rdma_devices(const std::string& root) {
  std::vector<RdmaDevice> found;
  std::error_code error;
  for (const auto& device : std::filesystem::directory_iterator(root + kDevicesFolder, error)) {
    std::error_code ports_error;
    const std::filesystem::path ports = device.path() / "ports";
    for (const auto& port : std::filesystem::directory_iterator(ports, ports_error)) {
      std::ifstream state(port.path() / "state");
      std::string number;
      const bool active = state >> number && number == "4:";  // "4: ACTIVE"
      const auto index = std::strtoul(port.path().filename().c_str(), nullptr, 10);
      found.push_back({device.path().filename().string(), static_cast<unsigned>(index),
                       is_software(device.path()), active});
    }
  }
  std::sort(found.begin(), found.end(), [](const RdmaDevice& left, const RdmaDevice& right) {
    return std::tie(left.name, left.port) < std::tie(right.name, right.port);
  });
  return found;
}

std::vector<RdmaDevice> active_rdma_devices() {
  std::vector<RdmaDevice> found = rdma_devices();
  std::erase_if(found, [](const RdmaDevice& device) { return !device.active; });
  return found;
}

Result<void> check_rdma_device() {
  std::error_code error;
  if (!std::filesystem::exists(kDevicesFolder, error) ||
      std::filesystem::is_empty(kDevicesFolder, error)) {
    return Error(Errc::kUnsupported, "this node has no RDMA device");
  }
  if (active_rdma_devices().empty()) {
    return Error(Errc::kUnsupported, "no port of this node's RDMA devices is active");
  }
  return {};
}

}  // namespace ho::transport
