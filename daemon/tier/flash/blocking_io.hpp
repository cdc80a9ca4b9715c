#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>

#include "common/base/result.hpp"
#include "daemon/tier/flash/device.hpp"

namespace ho::flash {

/// A device one operation after the other, waiting for each: for opening, formatting and checking.
/// Wrong to use while anyone else has operations in flight on the device.
class BlockingIo {
 public:
  explicit BlockingIo(Device& device) : device_(device) {}

  /// Any length in whole blocks; split as the device wants. `into` is aligned to a block.
  /// @return kIo, kExhausted with the path's name and the offset.
  [[nodiscard]] Result<void> read(PathIndex path, std::uint64_t offset_bytes,
                                  std::span<std::byte> into);
  /// As read(), but where that fails block by block. @return the blocks of `into` that cannot be
  /// read.
  [[nodiscard]] std::set<std::uint64_t> read_salvage(PathIndex path, std::uint64_t offset_bytes,
                                                     std::span<std::byte> into);
  [[nodiscard]] Result<void> write(PathIndex path, std::uint64_t offset_bytes,
                                   std::span<std::byte> from);
  [[nodiscard]] Result<void> sync(PathIndex path);

  [[nodiscard]] Device& device() { return device_; }

 private:
  [[nodiscard]] Result<void> run(DeviceOp op);
  [[nodiscard]] Result<void> run_split(DeviceOp op);

  Device& device_;
};

}  // namespace ho::flash
