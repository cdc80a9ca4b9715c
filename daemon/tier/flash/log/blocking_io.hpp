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

/// Runs one device operation at a time and waits for it; for opening, formatting and checking. No
/// other operation may be in flight on the device.
///
/// After an operation without an answer for two minutes, the device gets no further requests, since
/// that operation may still end at any time. All transfers use memory of this class, which is never
/// freed while such an operation may use it. The caller's memory is free after each call.
class BlockingIo {
 public:
  explicit BlockingIo(Device& device) : device_(device) {}
  ~BlockingIo();
  BlockingIo(const BlockingIo&) = delete;
  BlockingIo& operator=(const BlockingIo&) = delete;

  /// Reads whole blocks of any length, split as the device requires.
  /// @return kIo, kExhausted, kDeadline (and kDeadline from then on), with the name of the path and
  /// the offset.
  [[nodiscard]] Result<void> read(PathIndex path, std::uint64_t offset_bytes,
                                  std::span<std::byte> into, Coding coding = Coding::kSecret);
  /// Like read(), but reads block by block if that fails. @return the blocks of `into` that are
  /// unreadable, or kDeadline.
  [[nodiscard]] Result<std::set<std::uint64_t>> read_salvage(PathIndex path,
                                                             std::uint64_t offset_bytes,
                                                             std::span<std::byte> into);
  [[nodiscard]] Result<void> write(PathIndex path, std::uint64_t offset_bytes,
                                   std::span<std::byte> from, Coding coding = Coding::kSecret);
  [[nodiscard]] Result<void> sync(PathIndex path);

  [[nodiscard]] Device& device() { return device_; }

 private:
  [[nodiscard]] Result<void> run(DeviceOp op);
  [[nodiscard]] Result<void> run_split(DeviceOp op);

  Device& device_;
  AlignedMemory memory_{kDeviceOpBytesMax};
  std::uint64_t operations_ = 0;
  std::optional<Error> dead_;  ///< the operation that got no answer
};

}  // namespace ho::flash
