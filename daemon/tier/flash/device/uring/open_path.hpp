#pragma once

#include <cstdint>
#include <string>

#include "common/base/result.hpp"
#include "common/base/unique_fd.hpp"

namespace ho::flash {

enum class DeviceMode : std::uint8_t {
  kReadWrite,  ///< locked for this process alone
  kReadOnly,   ///< for looking at it; locked against a daemon
};

struct OpenPath {
  UniqueFd fd;
  std::uint64_t size_bytes = 0;  ///< whole blocks
  std::uint32_t memory_alignment = 512;
};

/// Opens, checks and locks one path; make_uring_device() lists the outcomes.
[[nodiscard]] Result<OpenPath> open_path(const std::string& name, DeviceMode mode);

}  // namespace ho::flash
