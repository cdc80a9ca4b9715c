#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ho::transport {

/// Copies as fast as this machine can. Any thread; no state.
///
/// `total_bytes` is the size of the whole operation this piece belongs to: from
/// streaming_bytes_min() on the copy uses non-temporal stores, which skip reading the target's
/// cache lines. The areas do not overlap. With streaming stores a fence orders them before it
/// returns.
void copy_piece(std::byte* to, const std::byte* from, std::size_t length_bytes,
                std::size_t total_bytes);

/// A copy of one kind; the areas do not overlap, alignment and length are free.
using Copy = void (*)(std::byte* to, const std::byte* from, std::size_t length_bytes);

/// Copies with non-temporal stores that this processor has, of AVX2, AVX-512 and SSE2 and in this
/// order; none where the architecture has none. The widest is not always the fastest: copy_piece()
/// uses AVX2 or AVX-512, as they were measured, and SSE2 only where there is nothing else.
[[nodiscard]] std::vector<Copy> streaming_copies();

/// Which of several ways of copying to use, by what the same bytes took with each: the first,
/// unless another one is faster by more than measurements on a busy machine err (3 %). An index of
/// the times, of which there is at least one.
[[nodiscard]] std::size_t preferred(std::span<const std::uint64_t> times_ns);

/// The size from which streaming stores beat the plain copy here, for memory that is not in the
/// cache. Measured at the first call in a process (about 100 ms; it populates 128 MiB of
/// memory for as long), then fixed.
[[nodiscard]] std::size_t streaming_bytes_min();

}  // namespace ho::transport
