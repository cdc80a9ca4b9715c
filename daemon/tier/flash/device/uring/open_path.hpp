#pragma once

#include <cstdint>
#include <string>

#include "common/base/result.hpp"
#include "common/system/unique_fd.hpp"

namespace ho::flash {

enum class DeviceMode : std::uint8_t {
  kReadWrite,  ///< locked exclusively by this process
  kReadOnly,   ///< for examining; no daemon may use it at the same time
  kTrial,      ///< as kReadWrite, to see whether that succeeds: changes nothing on the path
};

struct OpenPath {
  UniqueFd fd;
  std::uint64_t size_bytes = 0;  ///< a multiple of the block size
  std::uint32_t memory_alignment = 512;
};

/// Whether a path that this process has open could be opened again by another one: it is there, and
/// only its owner may open it.
[[nodiscard]] Result<void> check_path(const std::string& name);

/// Opens, checks and locks one path; make_uring_device() lists the outcomes.
[[nodiscard]] Result<OpenPath> open_path(const std::string& name, DeviceMode mode);

}  // namespace ho::flash
