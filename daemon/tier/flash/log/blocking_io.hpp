#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>

#include "common/base/result.hpp"
#include "daemon/tier/flash/device/aligned_memory.hpp"
#include "daemon/tier/flash/device/device.hpp"

namespace ho::flash {

/// A device one operation after the other, waiting for each: for opening, formatting and checking.
/// Wrong to use while anyone else has operations in flight on the device.
///
/// A device that left one operation without an answer for two minutes is asked nothing more: that
/// one may still end at any time. All transfers go through memory of this class, which is never
/// freed once such an operation may still use it; the caller's is its own after each call.
class BlockingIo {
 public:
  explicit BlockingIo(Device& device) : device_(device) {}
  ~BlockingIo();
  BlockingIo(const BlockingIo&) = delete;
  BlockingIo& operator=(const BlockingIo&) = delete;

  /// Any length in whole blocks; split as the device wants.
  /// @return kIo, kExhausted, kDeadline (and so from then on) with the path's name and the offset.
  [[nodiscard]] Result<void> read(PathIndex path, std::uint64_t offset_bytes,
                                  std::span<std::byte> into);
  /// As read(), but where that fails block by block. @return the blocks of `into` that cannot be
  /// read, or kDeadline.
  [[nodiscard]] Result<std::set<std::uint64_t>> read_salvage(PathIndex path,
                                                             std::uint64_t offset_bytes,
                                                             std::span<std::byte> into);
  [[nodiscard]] Result<void> write(PathIndex path, std::uint64_t offset_bytes,
                                   std::span<std::byte> from);
  [[nodiscard]] Result<void> sync(PathIndex path);

  [[nodiscard]] Device& device() { return device_; }

 private:
  [[nodiscard]] Result<void> run(DeviceOp op);
  [[nodiscard]] Result<void> run_split(DeviceOp op);

  Device& device_;
  AlignedMemory memory_{kDeviceOpBytesMax};
  std::uint64_t operations_ = 0;
  std::optional<Error> dead_;  ///< what was left without an answer
};

}  // namespace ho::flash
