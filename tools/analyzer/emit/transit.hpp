#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace ho::analyzer {

/// Half-open range of bytes.
struct ByteRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// A block that holds bytes from a position of each step on.
struct TakenBytes {
  std::int64_t first = 0;  ///< position, 0 where it spans the step's beginning
  ByteRange bytes;
};

/// Room for transfers through local DDR at the start of the first step.
struct TransitRoom {
  ByteRange bytes;
  std::int64_t until = 0;  ///< the bytes are free at the positions up to this one
};

/// Finds the rooms that stay free longest, at most up to position `wanted_until`, and the lowest of
/// equal ones. One has two times `largest` bytes, so that a transfer can arrive while the one
/// before goes on, if position 0 has such room. The other has `largest` bytes, if it lasts longer
/// or there is no room for two.
/// @param taken  holders of bytes in `within`; they leave at least `largest` free at position 0.
/// O(n log n).
[[nodiscard]] std::vector<TransitRoom> transit_rooms(std::vector<TakenBytes> taken,
                                                     ByteRange within, std::uint64_t largest,
                                                     std::int64_t wanted_until);

/// Places transfers in a room one after the other, and after its end at its beginning again. A
/// value.
class TransitRing {
 public:
  explicit TransitRing(ByteRange room) : room_(room), cursor_(room.begin) {}

  struct Place {
    std::uint64_t offset = 0;
    std::vector<std::uint32_t> after;  ///< ids of earlier places, which release the bytes
  };
  /// @param bytes  at most the room's.
  /// @param id     its completion frees the bytes for later places
  [[nodiscard]] Place take(std::uint64_t bytes, std::uint32_t id);

 private:
  struct Part {
    std::uint64_t end = 0;
    std::uint32_t id = 0;
  };
  ByteRange room_;
  std::uint64_t cursor_;
  std::map<std::uint64_t, Part> parts_;  // by first byte; disjoint
};

}  // namespace ho::analyzer
