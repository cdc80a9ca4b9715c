#pragma once

#include <cstdint>
#include <vector>

namespace ho::packing {

/// Half-open range of sections.
struct Range {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;

  friend bool operator==(const Range&, const Range&) = default;
};

/// Bytes needed during one range of sections, or two when the lifetime spans the end of a cycle:
/// then `first` reaches to the last section and `second` starts at section 0.
struct Item {
  std::int64_t bytes = 0;
  Range first;
  Range second;  ///< empty unless wrapped

  [[nodiscard]] bool wrapped() const { return second.end != 0; }
};

/// Do the two share a section?
[[nodiscard]] inline bool meet(const Item& a, const Item& b) {
  if (a.first.begin < b.first.end && b.first.begin < a.first.end) return true;
  return (a.wrapped() && b.first.begin < a.second.end) ||
         (b.wrapped() && a.first.begin < b.second.end) || (a.wrapped() && b.wrapped());
}

/// One independent packing problem. Time is cut into sections: the maximal sets of items that are
/// alive together, in order of time; two items may share bytes unless they share a section.
struct Instance {
  std::vector<Item> items;  ///< by first.begin
  std::uint32_t sections = 0;
  std::int64_t load_bytes = 0;  ///< largest sum over sections: no packing is lower
};

/// A lifetime [begin, end) in time of any unit. With a cycle, begin may be negative and end beyond
/// the cycle's length.
struct Lifetime {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t bytes = 0;
};

/// An independent part of a problem: its items stand on `base_bytes`.
struct Part {
  Instance instance;
  std::vector<std::uint32_t> ids;  ///< of the lifetimes, parallel to instance.items
};

/// A problem cut into what can be solved apart.
struct Parts {
  std::vector<Part> parts;
  std::vector<std::int64_t> base_bytes;     ///< parallel to parts
  std::vector<std::int64_t> fixed_offsets;  ///< per lifetime; -1 where a part decides
  std::int64_t load_bytes = 0;
};

/// Where a packing is decided: the items alive in sections with a load of at least some limit.
struct Core {
  std::vector<std::uint32_t> bottom;  ///< items alive in all those sections, the longest first
  std::vector<std::uint32_t> items;   ///< the others
  std::vector<Lifetime> lifetimes;    ///< of `items`, whole: two may meet only in light sections
  std::int64_t cycle = 0;             ///< for cut()
};
[[nodiscard]] Core core_of(const Instance& instance, std::int64_t heavy_bytes);

/// Bytes alive in each section.
[[nodiscard]] std::vector<std::int64_t> section_loads(const Instance& instance);

/// Number of sections of an item.
[[nodiscard]] inline std::int64_t length_of(const Item& item) {
  return std::int64_t{item.first.end} - item.first.begin + item.second.end;
}

/// Cuts time where nothing is alive across, puts what is alive during a whole part at its bottom,
/// and repeats. `cycle`: 0 for a line. Each lifetime is non-empty with bytes > 0; the sum of all
/// bytes fits into 62 bits. O(n log n) for each repetition.
[[nodiscard]] Parts cut(const std::vector<Lifetime>& lifetimes, std::int64_t cycle);

}  // namespace ho::packing
