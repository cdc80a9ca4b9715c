#pragma once

#include <cstddef>

namespace ho::transport {

/// Copies as fast as this machine can. Any thread; no state.
///
/// `total_bytes` is the size of the whole operation this piece belongs to: from
/// streaming_bytes_min() on the copy uses non-temporal stores, which skip reading the target's
/// cache lines. The areas do not overlap. With streaming stores a fence orders them before it
/// returns.
void copy_piece(std::byte* to, const std::byte* from, std::size_t length_bytes,
                std::size_t total_bytes);

/// Copies with non-temporal stores of the widest kind the processor has (AVX-512, AVX2, SSE2).
void copy_streaming(std::byte* to, const std::byte* from, std::size_t length_bytes);

/// The size from which streaming stores beat the plain copy here, for memory that is not in the
/// cache. Measured at the first call in a process (about 100 ms), then fixed.
[[nodiscard]] std::size_t streaming_bytes_min();

}  // namespace ho::transport
