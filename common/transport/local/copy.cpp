#include "common/transport/local/copy.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "common/base/units.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ho::transport {
namespace {

#if defined(__x86_64__)

// Each loop moves whole lines of 64 bytes to a 64-byte aligned target; four lines a turn keep
// enough loads in flight to fill the memory pipeline.
constexpr std::size_t kLineBytes = 64;

__attribute__((target("avx512f"))) void stream_lines_avx512(std::byte* to, const std::byte* from,
                                                            std::size_t lines) {
  for (; lines >= 4; lines -= 4) {
    const __m512i a = _mm512_loadu_si512(from);
    const __m512i b = _mm512_loadu_si512(from + kLineBytes);
    const __m512i c = _mm512_loadu_si512(from + 2 * kLineBytes);
    const __m512i d = _mm512_loadu_si512(from + 3 * kLineBytes);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), a);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + kLineBytes), b);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + 2 * kLineBytes), c);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + 3 * kLineBytes), d);
    to += 4 * kLineBytes;
    from += 4 * kLineBytes;
  }
  for (; lines > 0; --lines, to += kLineBytes, from += kLineBytes) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
  }
}

__attribute__((target("avx2"))) void stream_lines_avx2(std::byte* to, const std::byte* from,
                                                       std::size_t lines) {
  for (std::size_t halves = 2 * lines; halves > 0; halves -= 2) {
    const auto* source = reinterpret_cast<const __m256i*>(from);
    auto* target = reinterpret_cast<__m256i*>(to);
    const __m256i a = _mm256_loadu_si256(source);
    const __m256i b = _mm256_loadu_si256(source + 1);
    _mm256_stream_si256(target, a);
    _mm256_stream_si256(target + 1, b);
    to += kLineBytes;
    from += kLineBytes;
  }
}

void stream_lines_sse2(std::byte* to, const std::byte* from, std::size_t lines) {
  for (std::size_t quarters = 4 * lines; quarters > 0; --quarters) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    to += sizeof(__m128i);
    from += sizeof(__m128i);
  }
}

/// Heads and tails of less than a line are copied plainly; a fence orders the lines at the end.
template <void (*stream_lines)(std::byte*, const std::byte*, std::size_t)>
void copy_streaming(std::byte* to, const std::byte* from, std::size_t length_bytes) {
  const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(to) % kLineBytes;
  const std::size_t head = misaligned == 0 ? 0 : std::min(kLineBytes - misaligned, length_bytes);
  std::memcpy(to, from, head);
  const std::size_t lines = (length_bytes - head) / kLineBytes;
  stream_lines(to + head, from + head, lines);
  const std::size_t done = head + lines * kLineBytes;
  std::memcpy(to + done, from + done, length_bytes - done);
  _mm_sfence();
}

#endif

std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

void copy_plain(std::byte* to, const std::byte* from, std::size_t length_bytes) {
  std::memcpy(to, from, length_bytes);
}

/// Memory to measure in, walked round and round: no window is met again before more than a cache
/// holds has passed.
class Areas {
 public:
  struct Walk {
    std::size_t piece_bytes = 0;
    std::size_t turns = 0;
  };
  Areas() {
    void* mapped = ::mmap(nullptr, 2 * kAreaBytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (mapped == MAP_FAILED) return;
    from_ = static_cast<std::byte*>(mapped);
    std::memset(from_, 1, kAreaBytes);  // else all pages of a fresh mapping may be one zero page
  }
  Areas(const Areas&) = delete;
  Areas& operator=(const Areas&) = delete;
  ~Areas() {
    if (from_ != nullptr) ::munmap(from_, 2 * kAreaBytes);
  }
  [[nodiscard]] bool valid() const { return from_ != nullptr; }

  /// Each way of copying gets windows of its own in turns shorter than a time slice: on a machine
  /// that is busy while a job starts, whole walks would measure the scheduler.
  /// @return the time of one window by each way: the first quartile, which other work disturbs
  ///   less than the median.
  [[nodiscard]] std::vector<std::uint64_t> times_ns(const std::vector<Copy>& ways,
                                                    const Walk& walk) {
    std::vector<std::vector<std::uint64_t>> times(ways.size());
    for (std::size_t turn = 0; turn < walk.turns; ++turn) {
      for (std::size_t i = 0; i < ways.size(); ++i) {
        // Another one comes first in each turn.
        const std::size_t way = (i + turn) % ways.size();
        times[way].push_back(window_ns(ways[way], walk.piece_bytes));
      }
    }
    std::vector<std::uint64_t> quartiles;
    for (auto& of_way : times) {
      const auto quartile = of_way.begin() + static_cast<std::ptrdiff_t>(of_way.size() / 4);
      std::nth_element(of_way.begin(), quartile, of_way.end());
      quartiles.push_back(*quartile);
    }
    return quartiles;
  }

 private:
  static constexpr std::size_t kAreaBytes = 64 * kMiB;
  static constexpr std::size_t kWindowBytes = kMiB;

  std::uint64_t window_ns(Copy copy, std::size_t piece_bytes) {
    std::byte* to = from_ + kAreaBytes + at_;
    const std::byte* from = from_ + at_;
    at_ = (at_ + kWindowBytes) % kAreaBytes;
    const std::uint64_t start = now_ns();
    for (std::size_t at = 0; at < kWindowBytes; at += piece_bytes) {
      copy(to + at, from + at, piece_bytes);
    }
    return now_ns() - start;
  }

  std::byte* from_ = nullptr;
  std::size_t at_ = 0;
};

/// A way of copying that is faster by less may be slower in truth.
constexpr std::uint64_t kClearlyPercent = 3;
/// With this many turns one of 180 choices, each in fresh memory of a busy machine, took what is 4
/// % slower for clearly faster; with 48 turns 8 did, with 12 turns 14 (2026-11-22, AMD EPYC).
constexpr std::size_t kKindTurns = 96;
/// Plain and streaming copies are further apart.
constexpr std::size_t kSizeTurns = 48;

/// The result of a measurement.
struct Choice {
  Copy streaming = copy_plain;
  std::size_t streaming_bytes_min = std::numeric_limits<std::size_t>::max();
};

Choice measure() {
  constexpr std::array<std::size_t, 4> kPieces = {kMiB, 256 * kKiB, 64 * kKiB, 16 * kKiB};
  Choice choice;
  std::vector<Copy> streams = streaming_copies();
  if (streams.empty()) return choice;
  // SSE2 is for processors that have nothing wider: it won here in a quarter of all processes and
  // then took an eighth longer than AVX2 for the transfers themselves (2026-11-22, AMD EPYC).
  if (streams.size() > 1) streams.pop_back();
  choice.streaming = streams.front();
  Areas areas;
  if (!areas.valid()) {
    choice.streaming_bytes_min = kMiB;
    return choice;
  }
  choice.streaming = streams[preferred(
      areas.times_ns(streams, {.piece_bytes = kPieces.front(), .turns = kKindTurns}))];
  for (const std::size_t piece_bytes : kPieces) {
    const auto both = areas.times_ns({copy_plain, choice.streaming},
                                     {.piece_bytes = piece_bytes, .turns = kSizeTurns});
    if (both[1] >= both[0]) break;
    choice.streaming_bytes_min = piece_bytes;
  }
  return choice;
}

const Choice& choice() {
  static const Choice measured = measure();
  return measured;
}

}  // namespace

std::vector<Copy> streaming_copies() {
  std::vector<Copy> copies;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) copies.push_back(copy_streaming<stream_lines_avx2>);
  if (__builtin_cpu_supports("avx512f")) copies.push_back(copy_streaming<stream_lines_avx512>);
  copies.push_back(copy_streaming<stream_lines_sse2>);
#endif
  return copies;
}

std::size_t preferred(std::span<const std::uint64_t> times_ns) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < times_ns.size(); ++i) {
    if (times_ns[i] + times_ns[best] * kClearlyPercent / 100 < times_ns[best]) best = i;
  }
  return best;
}

std::size_t streaming_bytes_min() { return choice().streaming_bytes_min; }

void copy_piece(std::byte* to, const std::byte* from, std::size_t length_bytes,
                std::size_t total_bytes) {
  if (total_bytes >= choice().streaming_bytes_min) {
    choice().streaming(to, from, length_bytes);
  } else {
    std::memcpy(to, from, length_bytes);
  }
}

}  // namespace ho::transport
