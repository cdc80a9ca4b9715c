#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "common/base/numa.hpp"
#include "common/base/result.hpp"
#include "common/base/unique_fd.hpp"
#include "common/base/units.hpp"
#include "common/transport/transport.hpp"

namespace ho::daemon {

/// What pages stand behind a segment, best first.
enum class PageKind : std::uint8_t { kHugetlb2M, kThp, k4K };

/// "hugetlb-2M", "thp", "4K".
[[nodiscard]] std::string_view page_kind_name(PageKind kind);

inline constexpr std::uint64_t kHugePageBytes = 2 * kMiB;

/// Whether shared memory gets transparent huge pages, seen by making some; that the system allows
/// them does not say that it has any. Takes 4 MiB for a few ms. Not later than at start: it
/// reads /proc/self/smaps, which costs more the more memory this process has mapped.
[[nodiscard]] bool gets_thp();

/// What to do where the system has no page of the wanted kind left.
enum class Fallback : std::uint8_t {
  kSmallerPages,  ///< take the next kind below
  kNone,          ///< fail: the pool was promised out of the wanted kind and nothing else
};

/// As what pages are faulted in: kRead for mappings that cannot be written.
enum class Touch : std::uint8_t { kRead, kWrite };

/// Faults a shared mapping in, a piece at a time, so that another thread that maps or unmaps
/// meanwhile waits for a few milliseconds at most. Any thread.
/// @param stop  looked at before each piece; null: never stops.
/// @return kCanceled: told to stop. kUnsupported: a kernel before 5.14. kExhausted. kIo.
[[nodiscard]] Result<void> fault_in(std::span<std::byte> mapping, Touch touch,
                                    const std::atomic<bool>* stop);

/// The memory of one granted segment: a memfd of its own, sealed against growing and further seals,
/// not against shrinking, and the daemon's mapping of it. One for a read-only grant is also sealed
/// against writing by anyone who has no mapping yet: whoever gets its descriptor may open it anew
/// through /proc, but never for writing.  Made for one grant and destroyed with it:
/// the destructor truncates the memfd, so that whoever still maps it gets SIGBUS, and the kernel
/// gives the next segment zeroed pages. One owner at a time; any thread.
class SegmentMemory {
 public:
  struct Spec {
    std::uint64_t bytes = 0;  ///< a multiple of 2 MiB
    PageKind wanted = PageKind::k4K;
    Fallback fallback = Fallback::kSmallerPages;
    PageKind otherwise = PageKind::k4K;  ///< what smaller pages are
    transport::Rights rights = transport::Rights::kReadWrite;
    const std::atomic<bool>* stop = nullptr;  ///< set: give up soon; outlives the call
    std::optional<NumaNode> numa = {};        ///< where the pages should lie
  };
  /// Makes it and faults all of it in. Blocks (about 0.5 s/GiB): not for the control thread.
  /// @return kExhausted: the machine has no memory (of that kind) left. kCanceled: told to stop.
  /// kIo.
  [[nodiscard]] static Result<SegmentMemory> create(const Spec& spec);

  ~SegmentMemory();
  SegmentMemory(SegmentMemory&& other) noexcept;
  SegmentMemory& operator=(SegmentMemory&&) = delete;
  SegmentMemory(const SegmentMemory&) = delete;
  SegmentMemory& operator=(const SegmentMemory&) = delete;

  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }
  /// Its memfd, for mapping it again in this process. Owned here.
  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] PageKind page_kind() const { return kind_; }
  /// Where most of its pages lie. Nothing where the spec names no node, or the system does not
  /// tell.
  [[nodiscard]] std::optional<NumaNode> numa_node() const { return numa_; }

  /// A descriptor to pass to a client. kRead: opened anew read-only, so that the client cannot map
  /// it writable. @return kIo, kExhausted (descriptors).
  [[nodiscard]] Result<UniqueFd> descriptor(transport::Rights rights) const;

 private:
  SegmentMemory(UniqueFd fd, PageKind kind) : fd_(std::move(fd)), kind_(kind) {}
  [[nodiscard]] static Result<SegmentMemory> create_exactly(const Spec& spec, PageKind kind);
  [[nodiscard]] Result<void> take_pages(const Spec& spec);

  UniqueFd fd_;
  PageKind kind_;
  std::span<std::byte> bytes_;
  std::optional<NumaNode> numa_;
};

}  // namespace ho::daemon
