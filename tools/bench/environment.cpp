#include "tools/bench/environment.hpp"

#include <unistd.h>

#include <fstream>

#include "common/base/units.hpp"

namespace ho::bench {

std::string machine_class() {
  std::string model = "unknown processor";
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const std::size_t colon = line.find(": ");
    if (line.rfind("model name", 0) != 0 || colon == std::string::npos) continue;
    model = line.substr(colon + 2);
    break;
  }
  const auto cores = ::sysconf(_SC_NPROCESSORS_ONLN);
  const auto bytes = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                     static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return model + ", " + std::to_string(cores) + " cores, " + format_bytes(bytes);
}

std::string build_commit() { return HO_COMMIT; }

}  // namespace ho::bench
