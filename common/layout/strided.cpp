#include "common/layout/strided.hpp"

#include <array>
#include <cstddef>

#include "common/base/check.hpp"

namespace ho::layout {

namespace {

/// `count` repetitions, and how far apart they are in each buffer, in elements.
struct Loop {
  std::uint64_t count = 1;
  std::uint64_t source_stride = 0;
  std::uint64_t destination_stride = 0;
};

/// The loops that walk a part, innermost first, merged where two are one in both buffers.
struct Loops {
  std::array<Loop, kDimensionsMax> each{};
  std::size_t size = 0;
  std::uint64_t run = 1;  ///< elements that are contiguous in both buffers

  [[nodiscard]] std::uint64_t gets() const {
    std::uint64_t product = 1;
    for (std::size_t i = 1; i < size; ++i) product *= each[i].count;
    return product;
  }

  void add(const Loop& loop) {
    if (loop.count == 1) return;
    if (size == 0 && loop.source_stride == run && loop.destination_stride == run) {
      run *= loop.count;
      return;
    }
    if (size > 0) {
      Loop& inner = each[size - 1];
      if (loop.source_stride == inner.source_stride * inner.count &&
          loop.destination_stride == inner.destination_stride * inner.count) {
        inner.count *= loop.count;
        return;
      }
    }
    each[size++] = loop;
  }
};

/// How to walk a part in both buffers.
struct Walk {
  Loops loops;
  std::uint64_t source_offset = 0;
  std::uint64_t destination_offset = 0;
};

Walk walk_of(const Box& source, const Box& destination, const Box& part) {
  HO_CHECK(!part.empty());
  Walk walk;
  std::uint64_t source_stride = 1;
  std::uint64_t destination_stride = 1;
  for (std::size_t i = part.dimensions; i-- > 0;) {
    const Interval& side = part.sides[i];
    HO_CHECK(source.sides[i].begin <= side.begin && side.end <= source.sides[i].end);
    HO_CHECK(destination.sides[i].begin <= side.begin && side.end <= destination.sides[i].end);
    walk.loops.add({side.size(), source_stride, destination_stride});
    walk.source_offset += (side.begin - source.sides[i].begin) * source_stride;
    walk.destination_offset += (side.begin - destination.sides[i].begin) * destination_stride;
    source_stride *= source.sides[i].size();
    destination_stride *= destination.sides[i].size();
  }
  return walk;
}

}  // namespace

std::uint64_t count_gets(const Box& source, const Box& destination, const Box& part) {
  return walk_of(source, destination, part).loops.gets();
}

void append_gets(const Box& source, const Box& destination, const Box& part,
                 std::uint64_t element_bytes, const Get& like, std::vector<Get>& out) {
  const Walk walk = walk_of(source, destination, part);
  const Loops& loops = walk.loops;
  Get get = like;
  get.run_bytes = loops.run * element_bytes;
  if (loops.size > 0) {
    get.count = loops.each[0].count;
    get.source_stride_bytes = loops.each[0].source_stride * element_bytes;
    get.destination_stride_bytes = loops.each[0].destination_stride * element_bytes;
  }
  std::array<std::uint64_t, kDimensionsMax> at{};  // indices of the loops around a get
  while (true) {
    std::uint64_t source_at = walk.source_offset;
    std::uint64_t destination_at = walk.destination_offset;
    for (std::size_t i = 1; i < loops.size; ++i) {
      source_at += at[i] * loops.each[i].source_stride;
      destination_at += at[i] * loops.each[i].destination_stride;
    }
    get.source_offset_bytes = source_at * element_bytes;
    get.destination_offset_bytes = destination_at * element_bytes;
    out.push_back(get);
    std::size_t next = 1;
    while (next < loops.size && ++at[next] == loops.each[next].count) at[next++] = 0;
    if (next >= loops.size) return;
  }
}

}  // namespace ho::layout
