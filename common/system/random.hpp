#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace ho {

// From the kernel's generator: what nobody may guess (keys, tokens) and what must differ between
// processes (instances, salts). Any thread; waits only while the machine starts.

/// @param out  at most 256 bytes, which the kernel never gives in parts
void fill_random(std::span<std::byte> out);
[[nodiscard]] std::uint64_t random_u64();
[[nodiscard]] std::string random_bytes(std::size_t count);

}  // namespace ho
