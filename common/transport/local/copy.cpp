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

using StreamLines = void (*)(std::byte*, const std::byte*, std::size_t);

StreamLines widest_stream() {
  if (__builtin_cpu_supports("avx512f")) return stream_lines_avx512;
  if (__builtin_cpu_supports("avx2")) return stream_lines_avx2;
  return stream_lines_sse2;
}

#endif

std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

/// Copies one window in pieces. @return how long it took.
template <typename Copy>
std::uint64_t window_ns(std::byte* to, const std::byte* from, std::size_t window_bytes,
                        std::size_t piece_bytes, const Copy& copy) {
  const std::uint64_t start = now_ns();
  for (std::size_t at = 0; at + piece_bytes <= window_bytes; at += piece_bytes) {
    copy(to + at, from + at, piece_bytes);
  }
  return now_ns() - start;
}

std::uint64_t median(std::vector<std::uint64_t>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void copy_plain(std::byte* to, const std::byte* from, std::size_t length_bytes) {
  std::memcpy(to, from, length_bytes);
}

std::size_t measure_streaming_bytes_min() {
  constexpr std::size_t kWindowBytes = 2 * kMiB;
  constexpr std::size_t kWindows = 12;
  // With the target's, more than most caches keep.
  constexpr std::size_t kAreaBytes = kWindows * kWindowBytes;
  constexpr std::size_t kFallbackBytes = kMiB;
  constexpr std::array<std::size_t, 5> kPieces = {2 * kMiB, kMiB, 256 * kKiB, 64 * kKiB, 16 * kKiB};
  void* mapped = ::mmap(nullptr, 2 * kAreaBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (mapped == MAP_FAILED) return kFallbackBytes;
  auto* from = static_cast<std::byte*>(mapped);
  std::byte* to = from + kAreaBytes;
  std::memset(from, 1, kAreaBytes);  // else all pages of a fresh mapping may be one zero page

  std::size_t least = std::numeric_limits<std::size_t>::max();
  for (const std::size_t piece : kPieces) {
    // Windows of the two kinds alternate and are shorter than a time slice, and medians are
    // compared: on a machine that is busy while a job starts, whole walks would measure the
    // scheduler.
    std::vector<std::uint64_t> plain;
    std::vector<std::uint64_t> streaming;
    for (std::size_t i = 0; i < 2 * kWindows; ++i) {
      const std::size_t at = i % kWindows * kWindowBytes;
      const bool streams = (i + i / kWindows) % 2 == 0;  // each window once each way
      const std::uint64_t took =
          window_ns(to + at, from + at, kWindowBytes, piece, streams ? copy_streaming : copy_plain);
      (streams ? streaming : plain).push_back(took);
    }
    if (median(streaming) >= median(plain)) break;
    least = piece;
  }
  ::munmap(mapped, 2 * kAreaBytes);
  return least;
}

}  // namespace

void copy_streaming(std::byte* to, const std::byte* from, std::size_t length_bytes) {
#if defined(__x86_64__)
  static const StreamLines stream_lines = widest_stream();
  const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(to) % kLineBytes;
  const std::size_t head = misaligned == 0 ? 0 : std::min(kLineBytes - misaligned, length_bytes);
  std::memcpy(to, from, head);
  const std::size_t lines = (length_bytes - head) / kLineBytes;
  stream_lines(to + head, from + head, lines);
  const std::size_t done = head + lines * kLineBytes;
  std::memcpy(to + done, from + done, length_bytes - done);
  _mm_sfence();
#else
  std::memcpy(to, from, length_bytes);
#endif
}

std::size_t streaming_bytes_min() {
  static const std::size_t least = measure_streaming_bytes_min();
  return least;
}

void copy_piece(std::byte* to, const std::byte* from, std::size_t length_bytes,
                std::size_t total_bytes) {
  if (total_bytes >= streaming_bytes_min()) {
    copy_streaming(to, from, length_bytes);
  } else {
    std::memcpy(to, from, length_bytes);
  }
}

}  // namespace ho::transport
