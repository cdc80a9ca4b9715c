#pragma once

#include <cstdint>
#include <vector>

namespace ho::packing {

/// A half-open range of sections.
struct Range {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;

  friend bool operator==(const Range&, const Range&) = default;
};

/// Bytes needed during one range of sections, or during two if the lifetime spans the end of a
/// cycle: then `first` extends to the last section and `second` starts at section 0.
struct Item {
  std::int64_t bytes = 0;
  Range first;
  Range second;  ///< empty unless wrapped

  [[nodiscard]] bool wrapped() const { return second.end != 0; }
};

/// Whether the two share a section.
[[nodiscard]] inline bool meet(const Item& a, const Item& b) {
  if (a.first.begin < b.first.end && b.first.begin < a.first.end) return true;
  return (a.wrapped() && b.first.begin < a.second.end) ||
         (b.wrapped() && a.first.begin < b.second.end) || (a.wrapped() && b.wrapped());
}

/// One independent packing problem. Time is divided into sections: the maximal sets of items that
/// are alive together, in order of time. Two items may share bytes unless they share a section.
struct Instance {
  std::vector<Item> items;  ///< sorted by first.begin
  std::uint32_t sections = 0;
  std::int64_t load_bytes = 0;  ///< largest sum over sections; no packing is lower
};

/// A lifetime [begin, end) in any unit of time. With a cycle, begin may be negative and end beyond
/// the length of the cycle.
struct Lifetime {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t bytes = 0;
};

/// An independent part of a problem. Its items start at `base_bytes`.
struct Part {
  Instance instance;
  std::vector<std::uint32_t> ids;  ///< ids of lifetimes, parallel to instance.items
};

/// A problem divided into independent parts.
struct Parts {
  std::vector<Part> parts;
  std::vector<std::int64_t> base_bytes;     ///< parallel to parts
  std::vector<std::int64_t> fixed_offsets;  ///< per lifetime; -1: a part decides
  std::int64_t load_bytes = 0;
};

/// The part that decides the height of a packing: the items alive in sections whose load reaches
/// some limit.
struct Core {
  std::vector<std::uint32_t> bottom;  ///< items alive in all those sections, longest first
  std::vector<std::uint32_t> items;   ///< the other items
  std::vector<Lifetime>
      lifetimes;           ///< whole lifetimes of `items`: two may meet in light sections only
  std::int64_t cycle = 0;  ///< for cut()
};
[[nodiscard]] Core core_of(const Instance& instance, std::int64_t heavy_bytes);

/// The bytes alive in each section.
[[nodiscard]] std::vector<std::int64_t> section_loads(const Instance& instance);

/// The number of sections of an item.
[[nodiscard]] inline std::int64_t length_of(const Item& item) {
  return std::int64_t{item.first.end} - item.first.begin + item.second.end;
}

/// Divides time where no item is alive across, puts items that live during a whole part at its
/// bottom, and repeats. `cycle`: 0 for a line. Each lifetime is non-empty with bytes > 0; the sum
/// of all bytes fits 62 bits. O(n log n) per repetition.
[[nodiscard]] Parts cut(const std::vector<Lifetime>& lifetimes, std::int64_t cycle);

}  // namespace ho::packing
