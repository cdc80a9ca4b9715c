#pragma once

#include <cstdint>
#include <vector>

namespace ho::analyzer {

/// Bytes needed during moments [begin, end] (both included) of a cycle. begin may be negative and
/// end beyond the cycle: such a block spans the step's end. At most one cycle long.
struct Block {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::uint64_t bytes = 0;  ///< a multiple of the alignment
};

struct Packing {
  std::vector<std::uint64_t> offsets;  ///< parallel to the blocks
  std::uint64_t height_bytes = 0;      ///< highest end offset
  std::uint64_t load_bytes = 0;        ///< largest sum over moments: no packing is lower
  std::uint64_t work = 0;              ///< units of packing::Budget that were spent
};

/// Gives every block an offset such that blocks alive at the same moment share no byte: the
/// search of packing/solve.hpp under a limit of work that grows with the number of blocks. Stops at
/// the first result within `enough_bytes` that is near the load. Deterministic.
/// @param patience  so many times the usual work.
[[nodiscard]] Packing pack(const std::vector<Block>& blocks, std::int64_t cycle,
                           std::uint64_t enough_bytes, std::uint64_t patience = 1);

/// Per position of a step: by how much a block there ends above `enough_bytes`. O(n log n).
[[nodiscard]] std::vector<std::int64_t> over_bytes(const std::vector<Block>& blocks,
                                                   const std::vector<std::uint64_t>& offsets,
                                                   std::uint64_t enough_bytes,
                                                   std::int64_t positions);

/// The largest sum of blocks alive at one moment.
[[nodiscard]] std::uint64_t largest_load(const std::vector<Block>& blocks, std::int64_t cycle);

}  // namespace ho::analyzer
