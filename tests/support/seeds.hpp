#pragma once

#include <cstdint>
#include <cstdlib>
#include <optional>

// GCC defines macros under a sanitizer; clang has __has_feature.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HO_TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HO_TEST_SANITIZED 1
#endif
#endif

namespace ho::test {

/// The seed to replay (HO_SEED in the environment), or nullopt.
inline std::optional<std::uint64_t> only_seed() {
  const char* const one = std::getenv("HO_SEED");
  if (one == nullptr) return std::nullopt;
  return std::strtoull(one, nullptr, 10);
}

/// The number of seeds to run: `count`, or a quarter of it under a sanitizer, where a seed takes
/// ten times as long. The plain build runs all.
constexpr std::uint64_t seed_count(std::uint64_t count) {
#ifdef HO_TEST_SANITIZED
  return count / 4;
#else
  return count;
#endif
}

/// Runs `body(seed)` for the seeds 1 .. count, or for only_seed() alone.
template <typename Body>
void for_each_seed(std::uint64_t count, Body&& body) {
  if (const auto one = only_seed()) {
    body(*one);
    return;
  }
  for (std::uint64_t seed = 1; seed <= count; ++seed) body(seed);
}

}  // namespace ho::test
