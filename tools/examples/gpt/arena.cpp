#include "tools/examples/gpt/arena.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "common/base/units.hpp"

namespace ho::gpt {

Result<std::unique_ptr<Arena>> Arena::create(std::uint64_t wanted_bytes) {
  const std::uint64_t bytes = align_up(wanted_bytes, 64);
  const std::string what = "device arena of " + format_bytes(bytes);
  // The kernel promises more memory than there is, and then ends a process, perhaps a daemon.
  std::ifstream meminfo("/proc/meminfo");
  std::uint64_t kib = 0;
  for (std::string word; meminfo >> word && word != "MemAvailable:";) continue;
  if (meminfo >> kib && bytes / kKiB > kib) {
    return Error(Errc::kExhausted, what + ": this machine has " + format_bytes(kib * kKiB) +
                                       " available; take a smaller model or --device-memory");
  }
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  const std::uint64_t body = align_up(bytes, page);
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* const mapping = mmap(nullptr, body + page, PROT_READ | PROT_WRITE, kFlags, -1, 0);
  if (mapping == MAP_FAILED) return errno_error(errno, what);
  auto* const begin = static_cast<std::byte*>(mapping);
  std::unique_ptr<Arena> arena(new Arena(begin, body, bytes));
  if (mprotect(begin + body, page, PROT_NONE) != 0) return errno_error(errno, what);
  madvise(begin, body, MADV_HUGEPAGE);  // advice: the system may decline
  std::memset(begin, 0, body);
  return arena;
}

Arena::~Arena() { munmap(mapping_, body_bytes_ + static_cast<std::size_t>(sysconf(_SC_PAGESIZE))); }

}  // namespace ho::gpt
