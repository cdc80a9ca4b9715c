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

/// Room for what passes through local DDR as the first step begins.
struct TransitRoom {
  ByteRange bytes;
  std::int64_t until = 0;  ///< nothing else holds the bytes at the positions up to this one
};

/// Rooms that stay free longest, up to position `wanted_until` at most; of several the lowest. The
/// one for two times `largest` bytes, so that one transfer can arrive while the one before goes on,
/// where there is such room at position 0; and the one for `largest` where it lasts longer, or
/// alone.
/// @param taken  what holds bytes of `within`; leaves at least `largest` free at position 0.
/// O(n log n).
[[nodiscard]] std::vector<TransitRoom> transit_rooms(std::vector<TakenBytes> taken,
                                                     ByteRange within, std::uint64_t largest,
                                                     std::int64_t wanted_until);

/// Places transfers in a room one after the other, from its end on at its beginning again. A value.
class TransitRing {
 public:
  explicit TransitRing(ByteRange room) : room_(room), cursor_(room.begin) {}

  struct Place {
    std::uint64_t offset = 0;
    std::vector<std::uint32_t> after;  ///< who releases the bytes: ids of earlier places
  };
  /// @param bytes  at most the room's.
  /// @param id     whose completion frees the bytes for later places.
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
