#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "common/base/result.hpp"
#include "common/base/units.hpp"
#include "common/system/numa.hpp"
#include "common/system/unique_fd.hpp"
#include "common/transport/transport.hpp"

namespace ho::daemon {

/// The pages of a segment, best first.
enum class PageKind : std::uint8_t { kHugetlb2M, kThp, k4K };

/// "hugetlb-2M", "thp", "4K".
[[nodiscard]] std::string_view page_kind_name(PageKind kind);

inline constexpr std::uint64_t kHugePageBytes = 2 * kMiB;

/// Tests whether shared memory gets transparent huge pages, by making some: even if the system
/// allows them, it may have none. Uses 4 MiB for a few ms. Call it at start only: it reads
/// /proc/self/smaps, whose cost grows with the memory that the process has mapped.
[[nodiscard]] bool gets_thp();

/// What to do if the system has no free page of the wanted kind.
enum class Fallback : std::uint8_t {
  kSmallerPages,  ///< use the next smaller kind
  kNone,          ///< fail: the pool was promised pages of the wanted kind only
};

/// How to fault in pages: kRead for mappings without the right to write.
enum class Touch : std::uint8_t { kRead, kWrite };

/// Faults in a shared mapping, piece by piece, so that another thread that maps or unmaps memory
/// waits for a few milliseconds at most. Any thread.
/// @param stop  read before each piece; nullptr: never stops
/// @return kCanceled: stopped. kUnsupported: a kernel before 5.14. kExhausted. kIo.
[[nodiscard]] Result<void> fault_in(std::span<std::byte> mapping, Touch touch,
                                    const std::atomic<bool>* stop);

/// The memory of one granted segment: a memfd and the daemon's mapping of it. The memfd is sealed
/// against growing and against further seals, but not against shrinking. For a read-only grant it
/// is also sealed against new writable mappings: a client may reopen its descriptor through /proc,
/// but not for writing.
///
/// Made for one grant and destroyed with it. The destructor truncates the memfd: processes that
/// still map it get SIGBUS, and the kernel gives the next segment zeroed pages. One owner at a
/// time; any thread.
class SegmentMemory {
 public:
  struct Spec {
    std::uint64_t bytes = 0;  ///< a multiple of 2 MiB
    PageKind wanted = PageKind::k4K;
    Fallback fallback = Fallback::kSmallerPages;
    PageKind otherwise = PageKind::k4K;  ///< the kind of smaller pages
    /// nullopt: seal() follows; until then nobody else may have it.
    std::optional<transport::Rights> rights = transport::Rights::kReadWrite;
    const std::atomic<bool>* stop =
        nullptr;  ///< if not null: stop soon once it is true; must outlive the call
    std::optional<NumaNode> numa = {};  ///< the preferred node
  };
  /// Makes the segment and faults in all of it. Blocks for about 0.5 s/GiB, so do not call it on
  /// the control thread.
  /// @return kExhausted: no memory, or none of that kind. kCanceled: stopped. kIo.
  [[nodiscard]] static Result<SegmentMemory> create(const Spec& spec);

  /// The seals of a segment's memfd, with the rights of its grant; without: it is not granted yet.
  [[nodiscard]] static int seals(std::optional<transport::Rights> rights);
  /// Fixes the rights of memory that was made without. Once. @return kIo.
  [[nodiscard]] Result<void> seal(transport::Rights rights);

  /// Memory that an earlier process made, and that this one owns from now on. The caller has
  /// checked its file. On a failure it is cut to nothing.
  struct AdoptSpec {
    std::uint64_t bytes = 0;  ///< the size of the file
    PageKind pages = PageKind::k4K;
    transport::Rights rights = transport::Rights::kReadWrite;  ///< or it is not sealed yet
    std::optional<NumaNode> numa = {};
  };
  [[nodiscard]] static Result<SegmentMemory> adopt(UniqueFd fd, const AdoptSpec& spec);

  /// The memory outlives this object, and this process: another has its descriptor.
  void leave();

  ~SegmentMemory();
  SegmentMemory(SegmentMemory&& other) noexcept;
  SegmentMemory& operator=(SegmentMemory&&) = delete;
  SegmentMemory(const SegmentMemory&) = delete;
  SegmentMemory& operator=(const SegmentMemory&) = delete;

  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }
  /// The memfd, to map it again in this process. This object owns it.
  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] PageKind page_kind() const { return kind_; }
  /// The node with most of its pages. nullopt if the spec names no node, or the system does not
  /// report it.
  [[nodiscard]] std::optional<NumaNode> numa_node() const { return numa_; }

  /// A descriptor for a client. kRead: reopened read-only, so that the client cannot map it
  /// writable. @return kIo, kExhausted (descriptors).
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
