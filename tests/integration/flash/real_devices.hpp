#pragma once

#include <cstdint>
#include <string>

#include "common/system/unique_fd.hpp"

namespace ho::test {

/// Gives this process a mount namespace of its own, which ends with it: mounts made here need no
/// clean-up. @return why not; empty: done. Once per process is enough, more do no harm.
[[nodiscard]] std::string own_mounts();

/// Mounts; fails the test where that fails.
void mount_at(const std::string& what, const std::string& where, const char* type,
              unsigned long flags, const std::string& options = "");

/// A block device over a file. It goes away when this object and the last user have ended.
class LoopDevice {
 public:
  enum class Access : std::uint8_t { kReadWrite, kReadOnly };
  /// Fails the test where none can be had; own_mounts() has said that one can.
  explicit LoopDevice(const std::string& file, Access access = Access::kReadWrite);
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
  UniqueFd device_;
};

}  // namespace ho::test
