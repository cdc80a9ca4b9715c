#include "common/transport/ofi/alias.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "common/system/unique_fd.hpp"

namespace ho::transport {

AliasSpace::~AliasSpace() {
  for (const auto& alias : retired_) ::munmap(alias.data(), alias.size());
}

Result<std::span<std::byte>> AliasSpace::open(const ExposeRequest& request) {
  const std::span<std::byte> memory = request.memory;
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  if (memory.empty() || reinterpret_cast<std::uintptr_t>(memory.data()) % page != 0 ||
      memory.size() % page != 0) {
    return Error(Errc::kInvalidArgument, "exposed memory must be whole pages");
  }
  // By the descriptor: duplicating the mapping itself (mremap) fails for huge pages. Without
  // write access where there is no right to write: the memfd may be sealed against it. Not faulted
  // in here: that takes 20 ms/GiB, in which the data thread would serve nobody.
  const int protection = request.rights == Rights::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  void* const alias = ::mmap(nullptr, memory.size(), protection, MAP_SHARED, request.fd, 0);
  if (alias == MAP_FAILED) {
    const Errc code = errno == ENOMEM ? Errc::kExhausted : Errc::kUnsupported;
    return Error(code, errno_error(errno, "mapping exposed memory a second time").context());
  }
  ::madvise(alias, memory.size(), MADV_DONTDUMP);  // as the segment's own; a failure is harmless
  return std::span<std::byte>(static_cast<std::byte*>(alias), memory.size());
}

namespace {

/// Remaps the alias to fresh memory. @return false: it is still what it was.
bool cover(std::span<std::byte> alias) {
  constexpr int kProtection = PROT_READ | PROT_WRITE;
  // A file's pages count as used memory once they are written; private memory at once where the
  // system does not overcommit, and a mapping refused for that leaves a hole behind.
  const UniqueFd file(::memfd_create("hyperoffload-retired", MFD_CLOEXEC));
  if (file.valid() && ::ftruncate(file.get(), static_cast<off_t>(alias.size())) == 0) {
    return ::mmap(alias.data(), alias.size(), kProtection, MAP_SHARED | MAP_FIXED, file.get(), 0) ==
           alias.data();
  }
  // No descriptor left.
  return ::mmap(alias.data(), alias.size(), kProtection,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == alias.data();
}

}  // namespace

Result<void> AliasSpace::retire(std::span<std::byte> alias) {
  if (!cover(alias)) return errno_error(errno, "remapping memory that was revoked");
  // What late transfers have written into earlier sinks is given back.
  for (std::size_t i = 0; i < retired_.size() && i < 16; ++i) {
    const auto& earlier = retired_[retired_.size() - 1 - i];
    // A file's pages go with REMOVE, private ones with DONTNEED.
    if (::madvise(earlier.data(), earlier.size(), MADV_REMOVE) != 0) {
      ::madvise(earlier.data(), earlier.size(), MADV_DONTNEED);
    }
  }
  retired_.push_back(alias);
  retired_bytes_ += alias.size();
  while (retired_bytes_ > kReservedBytesMax || retired_.size() > kReservedCountMax) {
    const auto oldest = retired_.front();
    retired_.pop_front();
    retired_bytes_ -= oldest.size();
    ::munmap(oldest.data(), oldest.size());
  }
  return {};
}

}  // namespace ho::transport
