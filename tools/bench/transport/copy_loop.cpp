#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tools/bench/loop.hpp"
#include "tools/bench/turns.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ho::bench {
namespace {

// Shares no code with the driver's copy, whose mistakes it would otherwise hide.
using CopyFunction = void (*)(std::byte* to, const std::byte* from, std::size_t length_bytes);

void copy_plain(std::byte* to, const std::byte* from, std::size_t length_bytes) {
  std::memcpy(to, from, length_bytes);
}

#if defined(__x86_64__)

__attribute__((target("avx512f"))) void copy_stream512(std::byte* to, const std::byte* from,
                                                       std::size_t length_bytes) {
  std::size_t at = 0;
  for (; at + 128 <= length_bytes; at += 128) {
    const __m512i a = _mm512_loadu_si512(from + at);
    const __m512i b = _mm512_loadu_si512(from + at + 64);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at), a);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at + 64), b);
  }
  _mm_sfence();
  std::memcpy(to + at, from + at, length_bytes - at);
}

__attribute__((target("avx2"))) void copy_stream256(std::byte* to, const std::byte* from,
                                                    std::size_t length_bytes) {
  std::size_t at = 0;
  for (; at + 64 <= length_bytes; at += 64) {
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at + 32));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at), a);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at + 32), b);
  }
  _mm_sfence();
  std::memcpy(to + at, from + at, length_bytes - at);
}

#endif

class CopyLoop final : public Loop {
 public:
  CopyLoop(const LoopShape& shape, std::byte* to, const std::byte* from)
      : shape_(shape), to_(to), from_(from) {}

  void use(CopyFunction copy) { copy_ = copy; }

  [[nodiscard]] Result<double> run(Duration time) override {
    const SteadyClock clock;
    const TimePoint start = clock.now();
    std::uint64_t moved_bytes = 0;
    Duration took{0};
    while (took < time) {
      // Reads the clock once per 64 KiB at most, so that it does not slow small copies.
      const std::uint64_t stop = moved_bytes + std::max<std::uint64_t>(65536, shape_.size_bytes);
      for (; moved_bytes < stop; moved_bytes += shape_.size_bytes) {
        copy_(to_ + at_, from_ + at_, shape_.size_bytes);
        at_ += shape_.size_bytes;
        if (at_ + shape_.size_bytes > shape_.area_bytes) at_ = 0;
      }
      took = clock.now() - start;
    }
    return static_cast<double>(moved_bytes) * 1e9 / static_cast<double>(took.count());
  }

 private:
  const LoopShape shape_;
  std::byte* to_;
  const std::byte* from_;
  CopyFunction copy_ = copy_plain;
  std::uint64_t at_ = 0;
};

struct Candidate {
  const char* name;
  CopyFunction copy;
  std::vector<double> runs;
};

}  // namespace

Result<Limit> make_copy_limit(const LoopShape& shape, std::byte* local, std::byte* remote) {
  const bool get = shape.direction == Direction::kGet;
  std::byte* to = get ? local : remote;
  auto loop = std::make_unique<CopyLoop>(shape, to, get ? remote : local);
  std::vector<Candidate> candidates = {{"memcpy", copy_plain, {}}};
#if defined(__x86_64__)
  const bool aligned = shape.size_bytes % 64 == 0 && reinterpret_cast<std::uintptr_t>(to) % 64 == 0;
  if (aligned && __builtin_cpu_supports("avx512f")) {
    candidates.push_back({"AVX-512 streaming copy", copy_stream512, {}});
  }
  if (aligned && __builtin_cpu_supports("avx2")) {
    candidates.push_back({"AVX2 streaming copy", copy_stream256, {}});
  }
#endif
  // Takes many short turns to find the best: single turns differ by 4 %, and a limit must be the
  // best.
  constexpr int kTurnsMin = 5;
  constexpr Duration kTurn = std::chrono::milliseconds(1);
  constexpr Duration kTime = std::chrono::milliseconds(600);
  const SteadyClock clock;
  const TimePoint start = clock.now();
  for (int turn = 0; turn < kTurnsMin || clock.now() - start < kTime; ++turn) {
    for (Candidate& candidate : candidates) {
      loop->use(candidate.copy);
      const auto speed = loop->run(kTurn);
      if (!speed) return speed.error();
      candidate.runs.push_back(*speed);
    }
  }
  const auto median = [](const Candidate& one) { return quantile(one.runs, 0.5); };
  const Candidate& best = *std::max_element(
      candidates.begin(), candidates.end(),
      [&](const Candidate& a, const Candidate& b) { return median(a) < median(b); });
  loop->use(best.copy);
  return Limit{std::string("same-size copy (") + best.name + ")", std::move(loop)};
}

}  // namespace ho::bench
