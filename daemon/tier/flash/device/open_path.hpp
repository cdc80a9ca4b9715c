#pragma once

#include <cstdint>
#include <string>

#include "common/base/result.hpp"
#include "common/base/unique_fd.hpp"
#include "daemon/tier/flash/device/uring_device.hpp"

namespace ho::flash {

struct OpenPath {
  UniqueFd fd;
  std::uint64_t size_bytes = 0;  ///< whole blocks
  std::uint32_t memory_alignment = 512;
};

/// Opens, checks and locks one path; make_uring_device() lists the outcomes.
[[nodiscard]] Result<OpenPath> open_path(const std::string& name, DeviceMode mode);

}  // namespace ho::flash
