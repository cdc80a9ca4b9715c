#pragma once

#include <cstdint>
#include <cstdlib>
#include <optional>

namespace ho::test {

/// The one seed that a person replays (HO_SEED in the environment), or nothing.
inline std::optional<std::uint64_t> only_seed() {
  const char* const one = std::getenv("HO_SEED");
  if (one == nullptr) return std::nullopt;
  return std::strtoull(one, nullptr, 10);
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
