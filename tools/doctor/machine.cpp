#include "tools/doctor/machine.hpp"

#include <dlfcn.h>
#include <liburing.h>
#include <sys/resource.h>
#include <sys/timex.h>

#include <cerrno>
#include <fstream>
#include <string>
#include <system_error>

#include "common/base/units.hpp"
#include "common/transport/loader/open_module.hpp"
#include "common/transport/ucx/loader/rdma_devices.hpp"

namespace ho::doctor {

namespace {

std::optional<std::uint64_t> read_number(const std::string& path) {
  std::uint64_t number = 0;
  if (std::ifstream(path) >> number) return number;
  return std::nullopt;
}

std::string read_line(const std::string& path) {
  std::string line;
  std::getline(std::ifstream(path) >> std::ws, line);
  return line;
}

/// A line of /proc/meminfo in bytes.
std::optional<std::uint64_t> meminfo_bytes(const std::string& root, const std::string& name) {
  std::ifstream file(root + "/proc/meminfo");
  for (std::string word; file >> word;) {
    std::uint64_t kib = 0;
    if (word == name + ":" && file >> kib) return kib * kKiB;
  }
  return std::nullopt;
}

/// "always [never] within_size" -> "never".
std::string chosen_word(const std::string& line) {
  const auto open = line.find('[');
  const auto close = line.find(']', open);
  if (open == std::string::npos || close == std::string::npos) return {};
  return line.substr(open + 1, close - open - 1);
}

std::optional<std::uint64_t> limit_of(int resource) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return 0;
  if (limit.rlim_max == RLIM_INFINITY) return std::nullopt;
  return limit.rlim_max;
}

std::string io_uring_fault() {
  io_uring ring{};
  const int made = ::io_uring_queue_init(8, &ring, 0);
  if (made < 0) return std::generic_category().message(-made);
  ::io_uring_queue_exit(&ring);
  return {};
}

/// A function of a library that this program does not link, or nullptr.
template <typename Function>
Function* find_function(const char* library, const char* name) {
  const auto opened = transport::open_module(library);
  if (!opened) return nullptr;
  return reinterpret_cast<Function*>(::dlsym(*opened, name));
}

std::string ucx_version() {
  auto* const ask = find_function<const char*()>("libucp.so.0", "ucp_get_version_string");
  return ask == nullptr ? "" : ask();
}

std::string libfabric_version() {
  auto* const ask = find_function<std::uint32_t()>("libfabric.so.1", "fi_version");
  if (ask == nullptr) return {};
  // Major and minor number in one half each, as FI_MAJOR and FI_MINOR take them apart.
  const std::uint32_t version = ask();
  return std::to_string(version >> 16U) + "." + std::to_string(version & 0xffffU);
}

bool clock_synchronised() {
  timex state{};
  const int answer = ::adjtimex(&state);
  return answer >= 0 && answer != TIME_ERROR && (state.status & STA_UNSYNC) == 0;
}

}  // namespace

Machine read_machine(const std::string& root) {
  Machine machine;
  machine.memory_available_bytes = meminfo_bytes(root, "MemAvailable");
  machine.swap_bytes = meminfo_bytes(root, "SwapTotal");
  const auto pages = read_number(root + "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
  if (pages) machine.huge_pages_free_bytes = *pages * 2 * kMiB;
  machine.shmem_huge_pages =
      chosen_word(read_line(root + "/sys/kernel/mm/transparent_hugepage/shmem_enabled"));
  machine.mappings_max = read_number(root + "/proc/sys/vm/max_map_count");
  machine.clock_source =
      read_line(root + "/sys/devices/system/clocksource/clocksource0/current_clocksource");
  machine.descriptors_max = limit_of(RLIMIT_NOFILE);
  machine.locked_bytes_max = limit_of(RLIMIT_MEMLOCK);
  machine.clock_synchronised = clock_synchronised();
  machine.io_uring_fault = io_uring_fault();
  for (const transport::RdmaDevice& device : transport::rdma_devices(root)) {
    const std::string port = device.name + ":" + std::to_string(device.port);
    (device.active ? machine.rdma_ports : machine.rdma_ports_down)
        .push_back(port + (device.software ? " (software)" : ""));
  }
  machine.ucx_version = ucx_version();
  machine.libfabric_version = libfabric_version();
  return machine;
}

}  // namespace ho::doctor
