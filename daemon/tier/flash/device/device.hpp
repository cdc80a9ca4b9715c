#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/base/units.hpp"
#include "common/model/op.hpp"

namespace ho::flash {

/// What a device is read and written in: offsets and lengths are multiples of it.
inline constexpr std::uint64_t kBlockBytes = 4096;
/// The largest single device operation. More gains nothing on NVMe and makes others wait.
inline constexpr std::uint64_t kDeviceOpBytesMax = kMiB;

/// Which of the store's paths.
using PathIndex = Strong<struct PathIndexTag, std::uint16_t>;

enum class DeviceOpKind : std::uint8_t { kRead, kWrite, kSync };

struct DeviceOp {
  OpId op;
  DeviceOpKind kind = DeviceOpKind::kRead;
  PathIndex path;
  std::uint64_t offset_bytes = 0;  ///< kSync: 0
  std::span<std::byte> memory;     ///< only read for kWrite; kSync: empty
};

struct DevicePath {
  std::string name;
  std::uint64_t size_bytes = 0;  ///< a multiple of kBlockBytes
};

struct DeviceCaps {
  std::uint32_t depth_ops = 0;         ///< accepted and not yet handed out by poll()
  std::uint32_t memory_alignment = 1;  ///< of a memory span's first byte; a power of two
  /// Of the machine that the device is at: the same number means that it has not been down since,
  /// and so that all writes that completed are on the path. 0: unknown.
  std::uint64_t boot = 0;
  std::string notice;  ///< what people should know of how it runs; may be empty
};

/// Files or block devices that keep bytes, seen as one queue of operations.
/// Owner: one thread, the one that made it; wake() alone may come from others. submit() and poll()
/// never block or allocate; add_memory() may.
class Device {
 public:
  virtual ~Device() = default;

  [[nodiscard]] virtual const std::vector<DevicePath>& paths() const = 0;
  [[nodiscard]] virtual const DeviceCaps& caps() const = 0;

  /// Announces memory that operations will use often: it is registered with the kernel where
  /// that helps. Operations on other memory work too, at a higher price.
  /// @return kExhausted: cannot be registered, go on without.
  [[nodiscard]] virtual Result<void> add_memory(std::span<std::byte> memory) = 0;
  /// No operation on this memory is in flight any more. Unknown memory is ignored.
  virtual void remove_memory(std::span<std::byte> memory) = 0;

  /// Starts one operation. The caller keeps memory alive and, for kWrite, unchanged until its
  /// completion. kSync makes safe every write of its path whose completion came before the
  /// kSync was submitted. No order between operations.
  /// @return kBusy: depth_ops reached, nothing started.
  [[nodiscard]] virtual Result<void> submit(const DeviceOp& op) = 0;

  /// Moves up to out.size() completions into `out`: kOk with all bytes moved, kIo, kExhausted
  /// (no space on the file system), kUnavailable (the memory is not there any more). A short
  /// transfer is continued inside or becomes kIo.
  virtual std::size_t poll(std::span<Completion> out) = 0;

  /// Sleeps until poll() has something to hand out, wake() was called, or `time_max` is over.
  virtual void wait(Duration time_max) = 0;
  /// Ends a wait(). Any thread.
  virtual void wake() = 0;
};

}  // namespace ho::flash
