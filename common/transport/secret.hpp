#pragma once

#include <sys/random.h>

#include <cerrno>
#include <cstdint>

#include "common/base/result.hpp"

namespace ho::transport {

/// 64 bits from the kernel's generator: keys of regions, which peers must not guess.
[[nodiscard]] inline Result<std::uint64_t> random_secret() {
  std::uint64_t secret = 0;
  ssize_t got = 0;
  do {
    got = ::getrandom(&secret, sizeof secret, 0);
  } while (got < 0 && errno == EINTR);
  if (got != static_cast<ssize_t>(sizeof secret)) return errno_error(errno, "getrandom");
  return secret;
}

}  // namespace ho::transport
