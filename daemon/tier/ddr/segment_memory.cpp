#include "daemon/tier/ddr/segment_memory.hpp"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <string>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/units.hpp"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; Debian 12's kernel has it, its libc's header as well
#endif

namespace ho::daemon {

namespace {

constexpr std::uint64_t kHugePageBytes = 2 * kMiB;
// Bounded, so that a signal or another grant's pages need not wait for a whole segment.
constexpr std::uint64_t kFaultPieceBytes = 32 * kMiB;

std::uint64_t read_number(const std::string& path) {
  std::ifstream in(path);
  std::uint64_t value = 0;
  in >> value;
  return in ? value : 0;
}

bool shmem_gives_thp() {
  std::ifstream in("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  std::string word;
  while (in >> word) {
    if (word == "[advise]" || word == "[always]" || word == "[within_size]" || word == "[force]") {
      return true;
    }
  }
  return false;
}

}  // namespace

std::string_view page_kind_name(PageKind kind) {
  switch (kind) {
    case PageKind::kHugetlb2M: return "hugetlb-2M";
    case PageKind::kThp: return "thp";
    case PageKind::k4K: return "4K";
  }
  return "unknown";
}

PageKind best_page_kind(std::uint64_t bytes) {
  const std::string folder = "/sys/kernel/mm/hugepages/hugepages-2048kB/";
  const std::uint64_t free_pages = read_number(folder + "free_hugepages");
  const std::uint64_t promised = read_number(folder + "resv_hugepages");
  const std::uint64_t usable = free_pages - std::min(free_pages, promised);
  if (usable >= align_up(bytes, kHugePageBytes) / kHugePageBytes) return PageKind::kHugetlb2M;
  return shmem_gives_thp() ? PageKind::kThp : PageKind::k4K;
}

Result<SegmentMemory> SegmentMemory::create(std::uint64_t bytes, PageKind wanted) {
  HO_CHECK(bytes > 0 && bytes % kHugePageBytes == 0);
  if (wanted == PageKind::kHugetlb2M) {
    auto made = create_exactly(bytes, PageKind::kHugetlb2M);
    if (made) return made;
    wanted = shmem_gives_thp() ? PageKind::kThp : PageKind::k4K;
  }
  return create_exactly(bytes, wanted);
}

Result<SegmentMemory> SegmentMemory::create_exactly(std::uint64_t bytes, PageKind kind) {
  unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  if (kind == PageKind::kHugetlb2M) flags |= MFD_HUGETLB | MFD_HUGE_2MB;
  UniqueFd fd(::memfd_create("hyperoffload-segment", flags));
  if (!fd.valid()) return errno_error(errno, "memfd_create");
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return errno_error(errno, "ftruncate");
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return errno_error(errno, "seal");
  }
  SegmentMemory made(std::move(fd), kind);
  void* const base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, made.fd_.get(), 0);
  if (base == MAP_FAILED) return errno_error(errno, "map segment");
  made.bytes_ = {static_cast<std::byte*>(base), bytes};
  // Not a failure where it does not take: the pages are small then.
  if (kind == PageKind::kThp) ::madvise(base, bytes, MADV_HUGEPAGE);
  if (auto done = made.fault_in(); !done) return done.error();
  return made;
}

Result<void> SegmentMemory::fault_in() {
  for (std::uint64_t done = 0; done < bytes_.size();) {
    const std::uint64_t count = std::min<std::uint64_t>(kFaultPieceBytes, bytes_.size() - done);
    int failure = 0;
    if (::madvise(bytes_.data() + done, count, MADV_POPULATE_WRITE) != 0) failure = errno;
    if (failure == EINVAL) {
      // A kernel before 5.14: allocate the pages; the first touch maps them.
      failure = ::fallocate(fd_.get(), 0, static_cast<off_t>(done), static_cast<off_t>(count)) == 0
                    ? 0
                    : errno;
    }
    if (failure == EINTR) continue;
    // EFAULT: touching the page would have raised SIGBUS, the file system's "no space".
    if (failure == EFAULT) failure = ENOMEM;
    if (failure != 0) return errno_error(failure, "fault segment in");
    done += count;
  }
  return {};
}

SegmentMemory::SegmentMemory(SegmentMemory&& other) noexcept
    : fd_(std::move(other.fd_)), kind_(other.kind_), bytes_(std::exchange(other.bytes_, {})) {}

SegmentMemory::~SegmentMemory() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
  if (fd_.valid()) HO_CHECK(::ftruncate(fd_.get(), 0) == 0);
}

Result<UniqueFd> SegmentMemory::descriptor(transport::Rights rights) const {
  if (rights == transport::Rights::kReadWrite) {
    UniqueFd copy(::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0));
    if (!copy.valid()) return errno_error(errno, "duplicate descriptor");
    return copy;
  }
  const std::string path = "/proc/self/fd/" + std::to_string(fd_.get());
  UniqueFd reopened(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!reopened.valid()) return errno_error(errno, "open segment read-only");
  return reopened;
}

}  // namespace ho::daemon
