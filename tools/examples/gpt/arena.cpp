#include "tools/examples/gpt/arena.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>

#include "common/base/units.hpp"

namespace ho::gpt {
namespace {

/// What the kernel reckons can be had without swapping; nothing where it does not say.
std::optional<std::uint64_t> available_bytes() {
  std::ifstream in("/proc/meminfo");
  std::string line;
  while (std::getline(in, line)) {
    std::uint64_t kib = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %" SCNu64 " kB", &kib) == 1) return kib * 1024;
  }
  return std::nullopt;
}

}  // namespace

Result<std::unique_ptr<Arena>> Arena::create(std::uint64_t wanted) {
  const std::uint64_t bytes = align_up(wanted, 64);
  // Memory is promised freely and taken by force: the machine's next victim may be a daemon.
  if (const auto available = available_bytes(); available && bytes > *available) {
    return Error(Errc::kExhausted, "device arena of " + format_bytes(bytes) +
                                       ": this machine has " + format_bytes(*available) +
                                       " available; take a smaller model or --device-memory");
  }
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  const std::uint64_t body = align_up(bytes, page);
  void* const mapping =
      mmap(nullptr, body + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return errno_error(errno, "device arena of " + format_bytes(bytes));
  if (mprotect(mapping, body, PROT_READ | PROT_WRITE) != 0) {
    const Error error = errno_error(errno, "device arena of " + format_bytes(bytes));
    munmap(mapping, body + page);
    return error;
  }
  madvise(mapping, body, MADV_HUGEPAGE);  // advice: nothing is lost where the system declines
  std::memset(mapping, 0, body);
  std::byte* const data = static_cast<std::byte*>(mapping) + (body - bytes);
  return std::unique_ptr<Arena>(new Arena(mapping, body + page, data, bytes));
}

Arena::~Arena() { munmap(mapping_, mapping_bytes_); }

}  // namespace ho::gpt
