#pragma once

#include <array>
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

/// The unit of device I/O: offsets and lengths are multiples of it.
inline constexpr std::uint64_t kBlockBytes = 4096;
/// The largest single device operation. Larger ones gain nothing on NVMe and delay others.
inline constexpr std::uint64_t kDeviceOpBytesMax = kMiB;

/// Index of a path in the store.
using PathIndex = Strong<struct PathIndexTag, std::uint16_t>;

/// Tells the key of an encrypted path from others; zeros: the path is plain.
using KeyCheck = std::array<std::byte, 16>;

/// Whether an operation's bytes are encrypted on a path that has a key.
enum class Coding : std::uint8_t { kSecret, kPlain };

enum class DeviceOpKind : std::uint8_t { kRead, kWrite, kSync };

struct DeviceOp {
  OpId op;
  DeviceOpKind kind = DeviceOpKind::kRead;
  PathIndex path;
  std::uint64_t offset_bytes = 0;  ///< kSync: 0
  std::span<std::byte> memory;     ///< the device only reads it for kWrite; empty for kSync
  Coding coding = Coding::kSecret;
};

struct DevicePath {
  std::string name;
  std::uint64_t size_bytes = 0;  ///< a multiple of kBlockBytes
  KeyCheck key = {};             ///< that the device has for it
};

struct DeviceCaps {
  std::uint32_t depth_ops = 0;  ///< accepted operations that poll() has not returned yet
  std::uint32_t memory_alignment =
      1;  ///< required alignment of a memory span's first byte; a power of two
  /// Identifies the boot of the device's machine. If the number is unchanged, the machine has not
  /// been down since, so all completed writes are on the path. 0: unknown.
  std::uint64_t boot = 0;
  std::string notice;  ///< a remark for administrators; may be empty
};

/// Files or block devices, as one queue of operations. Owner: the thread that made it; other
/// threads may call only wake(). submit() and poll() never block or allocate; add_memory() may.
class Device {
 public:
  virtual ~Device() = default;

  [[nodiscard]] virtual const std::vector<DevicePath>& paths() const = 0;
  [[nodiscard]] virtual const DeviceCaps& caps() const = 0;

  /// Announces memory that operations will use often; registers it with the kernel if that helps.
  /// Operations on other memory also work, but are slower.
  /// @return kExhausted: it cannot be registered; continue without.
  [[nodiscard]] virtual Result<void> add_memory(std::span<std::byte> memory) = 0;
  /// Call it when no operation on this memory is in flight. Ignores unknown memory.
  virtual void remove_memory(std::span<std::byte> memory) = 0;

  /// Starts one operation. The caller keeps its memory valid and, for kWrite, unchanged until the
  /// completion. kSync makes every write of its path durable whose completion came before the kSync
  /// was submitted. Operations have no order.
  /// @return kBusy: depth_ops reached, nothing started.
  [[nodiscard]] virtual Result<void> submit(const DeviceOp& op) = 0;

  /// Moves up to out.size() completions into `out`: kOk with all bytes moved, kIo, kExhausted (the
  /// file system has no space), kUnavailable (the memory no longer exists). The driver continues a
  /// short transfer, or reports it as kIo.
  virtual std::size_t poll(std::span<Completion> out) = 0;

  /// Sleeps until poll() has completions, wake() is called, or `time_max` has passed.
  virtual void wait(Duration time_max) = 0;
  /// Ends a wait(). Any thread.
  virtual void wake() = 0;
};

}  // namespace ho::flash
