#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "client/accel/accel.hpp"
#include "client/accel/device_streams.hpp"
#include "common/base/error.hpp"
#include "common/base/result.hpp"
#include "proto/control/control_values.hpp"

namespace ho::client {

/// A granted segment of this node, mapped and pinned for an accelerator's copies, beside the
/// mapping that the driver `local` copies by. End it before its grant ends, with no copy in flight:
/// pinned pages outlive a truncated file, so the accelerator would copy from and to memory that no
/// process maps any more, without a fault.
class PinnedSegment {
 public:
  static_assert(kSegmentBytesMax <= Accel::kPinBytesMax);

  /// Maps `descriptor`, which stays the caller's. `streams` outlives it.
  [[nodiscard]] static Result<PinnedSegment> create(int descriptor, std::uint64_t bytes,
                                                    std::uint32_t node, DeviceStreams& streams) {
    // Populated now, since pinning would fault it in page by page.
    void* const base =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor, 0);
    if (base == MAP_FAILED) return errno_error(errno, "mapping a segment for an accelerator");
    PinnedSegment made;
    made.memory_ = {static_cast<std::byte*>(base), bytes};
    if (auto ok = streams.pin(made.memory_, node); !ok) {
      return ok.error().at("pinning a segment for the accelerator");
    }
    made.streams_ = &streams;
    return made;
  }
  PinnedSegment(PinnedSegment&& other) noexcept
      : memory_(std::exchange(other.memory_, {})),
        streams_(std::exchange(other.streams_, nullptr)) {}
  PinnedSegment& operator=(PinnedSegment&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(streams_, other.streams_);
    return *this;
  }
  ~PinnedSegment() {
    if (streams_ != nullptr) streams_->unpin(memory_);
    if (!memory_.empty()) ::munmap(memory_.data(), memory_.size());
  }

  [[nodiscard]] std::byte* data() const { return memory_.data(); }

 private:
  PinnedSegment() = default;

  std::span<std::byte> memory_;
  DeviceStreams* streams_ = nullptr;
};

}  // namespace ho::client
