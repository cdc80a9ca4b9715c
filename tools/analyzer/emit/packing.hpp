#pragma once

#include <cstdint>
#include <vector>

namespace ho::analyzer {

/// Bytes needed during positions [begin, end] (both included) of a cycle of `positions`. begin may
/// be negative and end beyond the cycle: such a block spans the step's end. At most one cycle long.
struct Block {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::uint64_t bytes = 0;  ///< a multiple of the alignment
};

struct Packing {
  std::vector<std::uint64_t> offsets;  ///< parallel to the blocks
  std::uint64_t height_bytes = 0;      ///< highest end offset
  std::uint64_t load_bytes = 0;        ///< largest sum over positions: no packing is lower
};

/// Gives every block an offset such that blocks alive at the same position share no byte: the
/// search of packing/solve.hpp under a limit of work that grows with the number of blocks. Stops at
/// the first result within `enough_bytes` that is near the load. Deterministic.
/// @param patience  so many times the usual work.
[[nodiscard]] Packing pack(const std::vector<Block>& blocks, std::int64_t positions,
                           std::uint64_t enough_bytes, std::uint64_t patience = 1);

}  // namespace ho::analyzer
