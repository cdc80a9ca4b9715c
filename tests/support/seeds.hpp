#pragma once

#include <catch2/catch.hpp>
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

/// Runs `body(seed)` for `count` seeds after `before`, or for only_seed() alone. A failure names
/// its seed.
template <typename Body>
void for_each_seed_after(std::uint64_t before, std::uint64_t count, Body&& body) {
  const auto one = only_seed();
  const std::uint64_t last = one.value_or(before + count);
  for (std::uint64_t seed = one.value_or(before + 1); seed <= last; ++seed) {
    INFO("HO_SEED=" << seed);
    body(seed);
  }
}

/// The same for the seeds 1 .. count.
template <typename Body>
void for_each_seed(std::uint64_t count, Body&& body) {
  for_each_seed_after(0, count, body);
}

/// The same for seeds that differ from run to run where HO_SEEDS_FROM is in the environment
/// (`tools/test --all` sets it): after that number. HO_SEED replays one at the same commit.
template <typename Body>
void for_each_fresh_seed(std::uint64_t count, Body&& body) {
  const char* const from = std::getenv("HO_SEEDS_FROM");
  for_each_seed_after(from == nullptr ? 0 : std::strtoull(from, nullptr, 10), count, body);
}

}  // namespace ho::test
