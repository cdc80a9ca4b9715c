#include "common/transport/ofi/alias.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "common/base/check.hpp"

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
  void* alias = MAP_FAILED;
  if (request.fd >= 0) {
    alias = ::mmap(nullptr, memory.size(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                   request.fd, 0);
  } else {
    // An old size of 0 duplicates a shared mapping. Huge pages of hugetlbfs refuse it: they need
    // the descriptor.
    alias = ::mremap(memory.data(), 0, memory.size(), MREMAP_MAYMOVE);
  }
  if (alias == MAP_FAILED) {
    const Error error = errno_error(errno, "mapping exposed memory a second time");
    return Error(Errc::kUnsupported, error.context());
  }
  return std::span<std::byte>(static_cast<std::byte*>(alias), memory.size());
}

void AliasSpace::retire(std::span<std::byte> alias) {
  void* sink = ::mmap(alias.data(), alias.size(), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  HO_CHECK(sink == alias.data());
  // What late transfers have written into earlier sinks is given back.
  for (std::size_t i = 0; i < retired_.size() && i < 16; ++i) {
    const auto& earlier = retired_[retired_.size() - 1 - i];
    ::madvise(earlier.data(), earlier.size(), MADV_DONTNEED);
  }
  retired_.push_back(alias);
  retired_bytes_ += alias.size();
  while (retired_bytes_ > kReservedBytesMax) {
    const auto oldest = retired_.front();
    retired_.pop_front();
    retired_bytes_ -= oldest.size();
    ::munmap(oldest.data(), oldest.size());
  }
}

}  // namespace ho::transport
