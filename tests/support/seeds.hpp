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

/// The number of seeds to run: `count`, times HO_SEEDS where that is in the environment
/// (`tools/test --all` sets 10). A quarter under a sanitizer, where a seed takes ten times as long.
inline std::uint64_t seed_count(std::uint64_t count) {
#ifdef HO_TEST_SANITIZED
  count = (count + 3) / 4;
#endif
  const char* const times = std::getenv("HO_SEEDS");
  return times == nullptr ? count : count * std::strtoull(times, nullptr, 10);
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

/// The same for seeds that differ from run to run where HO_SEEDS_FROM is in the environment
/// (`tools/test --all` sets it): from that number on. HO_SEED replays one at the same commit.
template <typename Body>
void for_each_fresh_seed(std::uint64_t count, Body&& body) {
  const char* const from = std::getenv("HO_SEEDS_FROM");
  const std::uint64_t first = from == nullptr ? 0 : std::strtoull(from, nullptr, 10);
  for_each_seed(count, [&](std::uint64_t seed) { body(only_seed() ? seed : first + seed); });
}

}  // namespace ho::test
