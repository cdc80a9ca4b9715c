#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "common/base/result.hpp"
#include "common/base/strong.hpp"
#include "common/base/units.hpp"

namespace ho::client {

/// An accelerator, as a job names it.
struct DeviceOptions {
  enum class Kind : std::uint8_t { kHost, kCuda };
  std::uint32_t ordinal = 0;  ///< the device's number, among those of its kind
  void* stream = nullptr;     ///< the job's own, as the driver calls it; null: the usual one
  std::string library;        ///< of the device's driver; empty: the usual one
  Kind kind = Kind::kHost;    ///< kHost: none
};

/// A mark that one lane sets and others wait for. Numbers of one Accel, never given back.
using AccelEvent = Strong<struct AccelEventTag, std::uint32_t>;

/// What runs in order by itself: the job's own stream, and one stream for each direction of copies.
enum class Lane : std::uint8_t { kJob, kIn, kOut };
inline constexpr std::size_t kLanes = 3;

/// One copy between device memory and pinned host memory.
struct AccelCopy {
  Lane lane = Lane::kIn;        ///< kIn: host -> device. kOut: device -> host. Not kJob
  std::byte* device = nullptr;  ///< an address of the device's: the processor must not use it
  std::byte* host = nullptr;    ///< read only for kIn
  std::uint64_t bytes = 0;      ///< >= 1
};

/// Streams of one accelerator: copies, marks, and waits for marks. All but pin() and unpin() queue
/// work and return; nothing waits for the device.
///
/// Threads: any for pin() and unpin(); the lane kJob belongs to the thread that drives the runtime,
/// the two others to the transfer thread. Calls on one event must not overlap: DeviceStreams holds
/// a mutex. After a failure of the device, or of a kernel of the job's, every call fails.
class Accel {
 public:
  /// What pin() takes at once. It does not cut a range itself, since no copy may cross from one
  /// pinned range into another.
  static constexpr std::uint64_t kPinBytesMax = 64 * kGiB;

  virtual ~Accel() = default;

  /// Makes the device known to the calling thread, for good. The transfer thread calls it once.
  [[nodiscard]] virtual Result<void> enter() = 0;

  /// @return kInvalidArgument: a part of the range is not memory of this device.
  [[nodiscard]] virtual Result<void> check_device_memory(std::span<const std::byte> memory) = 0;

  /// Start-up only. @return kExhausted, kIo.
  [[nodiscard]] virtual Result<AccelEvent> make_event() = 0;

  /// The event happens once all that is queued in the lane so far has ended. It forgets what it
  /// was recorded for before, so nothing may still be about to wait for that.
  [[nodiscard]] virtual Result<void> record(AccelEvent event, Lane lane) = 0;

  /// Makes later work of the lane start after the event. The event has been recorded: a wait for
  /// one that was not would not wait at all.
  [[nodiscard]] virtual Result<void> wait(Lane lane, AccelEvent event) = 0;

  /// Whether a recorded event has happened. @return kIo: the device has failed.
  [[nodiscard]] virtual Result<bool> happened(AccelEvent event) = 0;

  /// Queues a copy. Both ranges are the device's until an event recorded afterwards has happened.
  [[nodiscard]] virtual Result<void> copy(const AccelCopy& copy) = 0;

  /// Makes host memory of at most kPinBytesMax usable for copies, by any address within it. Takes
  /// about as long as writing it would, where it is fresh. @return kAlreadyExists: some of it is
  /// pinned; kExhausted; kIo.
  [[nodiscard]] virtual Result<void> pin(std::span<std::byte> host) = 0;

  /// Ends that, for a range that pin() was given. No copy uses it any more. Until then the pages
  /// stay the device's, even where the file that they belonged to has been cut short.
  virtual void unpin(std::span<std::byte> host) = 0;
};

}  // namespace ho::client
