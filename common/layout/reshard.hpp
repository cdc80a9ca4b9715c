#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/result.hpp"
#include "common/layout/layout.hpp"

namespace ho::layout {

/// A tensor on a mesh. Each rank holds its box in one buffer, contiguous and row-major.
struct Placement {
  Mesh mesh;
  Layout layout;
};

/// One read by the destination: `count` runs of bytes from a rank's buffer under the old layout
/// into the reader's buffer under the new one. If the rank is the reader, it is a copy in its own
/// memory.
struct Get {
  std::uint32_t from = 0;  ///< rank
  std::uint64_t source_offset_bytes = 0;
  std::uint64_t destination_offset_bytes = 0;
  std::uint64_t run_bytes = 0;
  std::uint64_t count = 1;
  std::uint64_t source_stride_bytes = 0;       ///< between the starts of two runs; 0: one run
  std::uint64_t destination_stride_bytes = 0;  ///< the same in the reader's buffer
  /// How the bytes join those already in the buffer; nothing: they replace them.
  std::optional<Reduction> combine;
  /// Read from what `from` has got by its own gets other than relays, in its buffer under the new
  /// layout, once it has all of them.
  bool relay = false;

  [[nodiscard]] std::uint64_t bytes() const { return run_bytes * count; }
};

/// The reads of one rank, in the order in which partial values are combined; relays come last.
struct Reader {
  std::uint32_t rank = 0;
  std::vector<Get> gets;
};

/// Gets of a plan at most: they and what they are made of take less than 4 GB.
inline constexpr std::uint64_t kGetsMax = std::uint64_t{4} << 20U;

/// How a tensor comes from one placement to another. A value.
struct Reshard {
  std::vector<Reader> readers;      ///< by position in the new mesh
  std::uint64_t bytes_moved = 0;    ///< between different ranks
  std::uint64_t bytes_minimal = 0;  ///< that a rank needs and does not hold, each once
  /// The most bytes that one rank sends or receives; links are full duplex.
  std::uint64_t busiest_link_bytes = 0;
  /// No choice of senders makes the busiest link carry less: holders, and with relays also readers.
  std::uint64_t busiest_link_floor_bytes = 0;
};

struct ReshardOptions {
  std::uint64_t element_bytes = 1;
  /// Ranks r with equal r / ranks_per_node share a node; a holder on the reader's node is
  /// preferred.
  std::uint32_t ranks_per_node = 1;
  /// Where holders would send more than any rank receives, readers of the same values read parts of
  /// them and the rest from one another. Readers on one node do so if ranks_per_node is above 1,
  /// else all. The parts are so few as load all readers equally. Partial values are not relayed,
  /// nor others where the busiest link would not carry less or the plan had too many gets.
  bool relays = false;
};

/// Plans the reads that bring a tensor from `from` to `to`. Every element is read once per reader:
/// from the reader's own memory if it is there, else from a holder on its node, else from the
/// holders in equal parts. A value that is partial in `from` is combined from all its terms in the
/// order of positions, so the result is the same each time. Ranks of both meshes with the same
/// number are the same process.
/// @return kInvalidArgument: `to` is partial, a layout does not fit the shape, element_bytes or
/// ranks_per_node is 0, the plan has more than kGetsMax gets, or all ranks together need 2^63 bytes
/// and more.
/// Cost: proportional to the number of gets. Thread-safe.
[[nodiscard]] Result<Reshard> reshard(const Placement& from, const Placement& to,
                                      const Shape& shape, const ReshardOptions& options);

}  // namespace ho::layout
