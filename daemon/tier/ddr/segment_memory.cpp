#include "daemon/tier/ddr/segment_memory.hpp"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/units.hpp"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14. Debian 12 has it in its kernel and its libc headers
#endif

namespace ho::daemon {

namespace {

// Bounded: the kernel locks the process's memory map meanwhile, and the data thread changes it for
// other grants. 4 MiB take about 2 ms (measured 2026-11 on a 2-core virtual machine).
constexpr std::uint64_t kFaultPieceBytes = 4 * kMiB;

/// The bytes of a mapping that the kernel maps with huge pages.
std::uint64_t huge_mapped_bytes(std::span<const std::byte> mapping) {
  std::ifstream in("/proc/self/smaps");
  const auto base = reinterpret_cast<std::uintptr_t>(mapping.data());
  bool here = false;
  std::uint64_t bytes = 0;
  for (std::string line; std::getline(in, line);) {
    const std::size_t colon = line.find(':');
    const std::size_t dash = line.find('-');
    if (dash < line.find(' ')) {  // "7f01c0000000-7f01d0000000 rw-s ...": the next mapping
      if (here) return bytes;
      here = std::strtoull(line.c_str(), nullptr, 16) == base;
    } else if (here &&
               (line.rfind("ShmemPmdMapped:", 0) == 0 || line.rfind("FilePmdMapped:", 0) == 0)) {
      bytes += std::strtoull(line.c_str() + colon + 1, nullptr, 10) * kKiB;
    }
  }
  return bytes;
}

/// Advises the kernel of a new mapping of a segment. A failure is harmless.
void advise(std::span<std::byte> mapping, PageKind kind) {
  // Asks in any case: the system may have huge pages later. A failure only means small pages.
  if (kind != PageKind::kHugetlb2M) ::madvise(mapping.data(), mapping.size(), MADV_HUGEPAGE);
  // A core dump of the daemon would have the jobs' bytes, also where no unit limits it.
  ::madvise(mapping.data(), mapping.size(), MADV_DONTDUMP);
}

Error no_mapping(int error) {
  // The memory itself is taken later: no room for it in the address space, or none to note it in.
  const char* const why = error == ENOMEM ? "no memory mapping left (vm.max_map_count): " : "";
  return errno_error(error, why + std::string("map segment"));
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

bool gets_thp() {
  SegmentMemory::Spec spec;
  spec.bytes = 4 * kMiB;
  spec.wanted = PageKind::kThp;
  const auto made = SegmentMemory::create(spec);
  return made && huge_mapped_bytes(made->bytes()) > 0;
}

Result<void> fault_in(std::span<std::byte> mapping, Touch touch, const std::atomic<bool>* stop) {
  const int advice = touch == Touch::kWrite ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
  for (std::uint64_t done = 0; done < mapping.size();) {
    if (stop != nullptr && stop->load()) {
      return Error(Errc::kCanceled, "the daemon is shutting down");
    }
    const std::uint64_t count = std::min<std::uint64_t>(kFaultPieceBytes, mapping.size() - done);
    if (::madvise(mapping.data() + done, count, advice) == 0) {
      done += count;
      continue;
    }
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno == EINVAL)
      return Error(Errc::kUnsupported, "this kernel does not support MADV_POPULATE_WRITE");
    // EFAULT: an access would raise SIGBUS, since the file system has no space.
    return errno_error(errno == EFAULT ? ENOMEM : errno, "fault segment in");
  }
  return {};
}

Result<SegmentMemory> SegmentMemory::create(const Spec& spec) {
  HO_CHECK(spec.bytes > 0 && spec.bytes % kHugePageBytes == 0);
  PageKind kind = spec.wanted;
  if (kind == PageKind::kHugetlb2M) {
    auto made = create_exactly(spec, kind);
    if (made || made.error().code() == Errc::kCanceled) return made;
    if (spec.fallback == Fallback::kNone) return made.error().at("no huge pages left");
    kind = spec.otherwise;
  }
  return create_exactly(spec, kind);
}

Result<SegmentMemory> SegmentMemory::create_exactly(const Spec& spec, PageKind kind) {
  const std::uint64_t bytes = spec.bytes;
  unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  if (kind == PageKind::kHugetlb2M) flags |= MFD_HUGETLB | MFD_HUGE_2MB;
  UniqueFd fd(::memfd_create("hyperoffload-segment", flags));
  if (!fd.valid()) return errno_error(errno, "memfd_create");
  // It is made for everybody: who has a descriptor for reading could open it again for writing.
  if (::fchmod(fd.get(), S_IRUSR | S_IWUSR) != 0) return errno_error(errno, "fchmod");
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return errno_error(errno, "ftruncate");
  SegmentMemory made(std::move(fd), kind);
  void* const base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, made.fd_.get(), 0);
  if (base == MAP_FAILED) return no_mapping(errno);
  made.bytes_ = {static_cast<std::byte*>(base), bytes};
  // After our own mapping, since F_SEAL_FUTURE_WRITE would forbid it too.
  if (::fcntl(made.fd_.get(), F_ADD_SEALS, seals(spec.rights)) != 0) {
    return errno_error(errno, "seal");
  }
  advise(made.bytes_, kind);
  // Before the first page exists. A failure is harmless: the memory works on any node, and
  // numa_node() reports the real one.
  if (spec.numa) static_cast<void>(prefer_numa_node(made.bytes_, *spec.numa));
  if (auto done = made.take_pages(spec); !done) return done.error();
  if (spec.numa) made.numa_ = numa_node_of(made.bytes_);
  return made;
}

int SegmentMemory::seals(std::optional<transport::Rights> rights) {
  if (!rights) return F_SEAL_GROW;
  const int all = F_SEAL_GROW | F_SEAL_SEAL;
  return *rights == transport::Rights::kRead ? all | F_SEAL_FUTURE_WRITE : all;
}

Result<void> SegmentMemory::seal(transport::Rights rights) {
  if (::fcntl(fd_.get(), F_ADD_SEALS, seals(rights)) != 0) return errno_error(errno, "seal");
  return {};
}

Result<SegmentMemory> SegmentMemory::adopt(UniqueFd fd, const AdoptSpec& spec) {
  HO_CHECK(fd.valid() && spec.bytes > 0);
  // That of an earlier daemon is open to everybody. A failure leaves it so.
  static_cast<void>(::fchmod(fd.get(), S_IRUSR | S_IWUSR));
  SegmentMemory made(std::move(fd), spec.pages);
  // The seal of a read-only grant forbids a new mapping for writing, to us as well.
  const int access = spec.rights == transport::Rights::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  void* const base = ::mmap(nullptr, spec.bytes, access, MAP_SHARED, made.fd_.get(), 0);
  if (base == MAP_FAILED) return no_mapping(errno);
  made.bytes_ = {static_cast<std::byte*>(base), spec.bytes};
  advise(made.bytes_, spec.pages);
  made.numa_ = spec.numa;
  return made;
}

void SegmentMemory::leave() { fd_.reset(); }

Result<void> SegmentMemory::take_pages(const Spec& spec) {
  auto done = fault_in(bytes_, Touch::kWrite, spec.stop);
  if (done || done.error().code() != Errc::kUnsupported) return done;
  // A kernel before 5.14: allocate the pages; the first access maps them.
  while (::fallocate(fd_.get(), 0, 0, static_cast<off_t>(bytes_.size())) != 0) {
    if (errno != EINTR) return errno_error(errno, "allocate segment");
  }
  return {};
}

SegmentMemory::SegmentMemory(SegmentMemory&& other) noexcept
    : fd_(std::move(other.fd_)),
      kind_(other.kind_),
      bytes_(std::exchange(other.bytes_, {})),
      numa_(other.numa_) {}

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
