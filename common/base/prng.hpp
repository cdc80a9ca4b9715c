#pragma once

#include <bit>
#include <cstdint>

#include "common/base/check.hpp"

namespace ho {

/// A fast seeded generator that gives the same numbers on every machine: xoshiro256**, seeded by
/// splitmix64. Not for secrets.
/// Source: Blackman and Vigna, "Scrambled linear pseudorandom number generators", 2021.
class Prng {
 public:
  explicit Prng(std::uint64_t seed) {
    for (auto& word : state_) {
      seed += 0x9e3779b97f4a7c15U;
      std::uint64_t z = seed;
      z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
      z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
      word = z ^ (z >> 31U);
    }
  }

  [[nodiscard]] std::uint64_t next() {
    const std::uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
    const std::uint64_t shifted = state_[1] << 17U;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }

  /// Uniform in [0, bound); bound > 0. The bias of the modulo is below 2^-32 for the bounds used
  /// here.
  [[nodiscard]] std::uint64_t below(std::uint64_t bound) {
    HO_CHECK(bound > 0);
    return next() % bound;
  }

  /// Uniform in [0, 1).
  [[nodiscard]] double unit() { return static_cast<double>(next() >> 11U) * 0x1.0p-53; }

 private:
  std::uint64_t state_[4];
};

}  // namespace ho
