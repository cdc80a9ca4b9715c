#pragma once

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>

namespace ho::test {

/// Whether a core dump of this process leaves out the mapping that begins at `base`.
inline bool left_out_of_core_dumps(const void* base) {
  std::ifstream in("/proc/self/smaps");
  bool here = false;
  for (std::string line; std::getline(in, line);) {
    if (line.find('-') <
        line.find(' ')) {  // "7f01c0000000-7f01d0000000 rw-s ...": the next mapping
      here = std::strtoull(line.c_str(), nullptr, 16) == reinterpret_cast<std::uintptr_t>(base);
    } else if (here && line.rfind("VmFlags:", 0) == 0) {
      return (line + " ").find(" dd ") != std::string::npos;
    }
  }
  return false;
}

}  // namespace ho::test
