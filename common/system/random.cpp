#include "common/system/random.hpp"

#include <sys/random.h>

#include <cerrno>

#include "common/base/check.hpp"

namespace ho {

void fill_random(std::span<std::byte> out) {
  HO_CHECK(out.size() <= 256);
  ssize_t got = 0;
  do {
    got = ::getrandom(out.data(), out.size(), 0);
  } while (got < 0 && errno == EINTR);
  HO_CHECK(got == static_cast<ssize_t>(out.size()));
}

std::uint64_t random_u64() {
  std::uint64_t value = 0;
  fill_random(std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

std::string random_bytes(std::size_t count) {
  std::string out(count, '\0');
  fill_random(std::as_writable_bytes(std::span(out)));
  return out;
}

}  // namespace ho
