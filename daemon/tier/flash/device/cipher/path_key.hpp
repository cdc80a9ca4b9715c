#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "common/base/result.hpp"
#include "daemon/tier/flash/device/device.hpp"

namespace ho::flash {

/// The key of AES-256-XTS: two keys of 32 bytes. A secret; the destructor wipes it.
class PathKey {
 public:
  static constexpr std::size_t kBytes = 64;

  /// Reads a file of exactly kBytes random bytes.
  /// @return kNotFound, kIo; kPermissionDenied: others may read or change it, or this process may
  /// not; kInvalidArgument: another size, or its halves are equal. The context names the file.
  [[nodiscard]] static Result<PathKey> read(const std::string& file);
  explicit PathKey(const std::array<std::byte, kBytes>& bytes) : bytes_(bytes) {}
  ~PathKey();
  PathKey(const PathKey&) = default;
  PathKey& operator=(const PathKey&) = default;

  [[nodiscard]] const std::array<std::byte, kBytes>& bytes() const { return bytes_; }
  /// Tells keys apart, and nothing else about them: the first half of a SHA-256.
  [[nodiscard]] KeyCheck check() const;

 private:
  std::array<std::byte, kBytes> bytes_{};
};

}  // namespace ho::flash
