#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "common/base/result.hpp"
#include "common/base/unique_fd.hpp"
#include "common/transport/transport.hpp"

namespace ho::daemon {

/// What pages stand behind a segment, best first.
enum class PageKind : std::uint8_t { kHugetlb2M, kThp, k4K };

/// "hugetlb-2M", "thp", "4K".
[[nodiscard]] std::string_view page_kind_name(PageKind kind);

/// The best kind this machine has for `bytes` of pool right now: reads /proc and /sys.
[[nodiscard]] PageKind best_page_kind(std::uint64_t bytes);

/// The memory of one granted segment: a memfd of its own, sealed against growing and further seals,
/// not against shrinking, and the daemon's mapping of it. Made for one grant and destroyed with it:
/// the destructor truncates the memfd, so that whoever still maps it gets SIGBUS, and the kernel
/// gives the next segment zeroed pages. One owner at a time; any thread.
class SegmentMemory {
 public:
  /// Makes it with pages of `wanted`, or the next kind below where the system has none left, and
  /// faults all of it in, a piece at a time. Blocks (about 0.5 s/GiB): not for the control thread.
  /// @return kExhausted: the machine has no memory left. kIo.
  [[nodiscard]] static Result<SegmentMemory> create(std::uint64_t bytes, PageKind wanted);

  ~SegmentMemory();
  SegmentMemory(SegmentMemory&& other) noexcept;
  SegmentMemory& operator=(SegmentMemory&&) = delete;
  SegmentMemory(const SegmentMemory&) = delete;
  SegmentMemory& operator=(const SegmentMemory&) = delete;

  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }
  [[nodiscard]] PageKind page_kind() const { return kind_; }

  /// A descriptor to pass to a client. kRead: opened anew read-only, so that the client cannot map
  /// it writable. @return kIo, kExhausted (descriptors).
  [[nodiscard]] Result<UniqueFd> descriptor(transport::Rights rights) const;

 private:
  SegmentMemory(UniqueFd fd, PageKind kind) : fd_(std::move(fd)), kind_(kind) {}
  [[nodiscard]] static Result<SegmentMemory> create_exactly(std::uint64_t bytes, PageKind kind);
  [[nodiscard]] Result<void> fault_in();

  UniqueFd fd_;
  PageKind kind_;
  std::span<std::byte> bytes_;
};

}  // namespace ho::daemon
