#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tools/analyzer/packing/budget.hpp"
#include "tools/analyzer/packing/greedy.hpp"
#include "tools/analyzer/packing/instance.hpp"

namespace ho::packing {

/// Finds the tightest hole between the placed items that share time with an item. Sections are
/// divided into windows. Each window lists its live items by low end, so a short item reads one
/// sorted list. For items that span many windows, groups of 8, 64, ... windows have the union of
/// their taken bytes. A value with one user.
class PlacedByTime {
 public:
  /// Chooses the size of windows by the lengths of `instance`'s items.
  explicit PlacedByTime(const Instance& instance);

  void add(const Item& item, std::int64_t offset);

  /// @return the offset of the tightest hole between the item's neighbours, the lowest of equal
  /// ones; above them if no hole is large enough.
  [[nodiscard]] std::int64_t place(const Item& item);

  /// The number of entries read or moved since the last call.
  [[nodiscard]] std::uint64_t take_work();

 private:
  struct Taken {
    std::int64_t low;
    std::int64_t top;
  };
  struct Entry {
    std::int64_t low;
    std::int64_t top;
    Range range;
  };
  /// Disjoint ranges in ascending order that do not touch each other.
  using Union = std::vector<Taken>;

  static constexpr unsigned kArityBits = 3;

  void add(const Range& range, Taken taken);
  void add_to_union(Union& all, Taken taken);
  void gather(const Range& range);
  void gather_window(std::uint32_t window, const Range& range);
  void merge(const Union& other);
  [[nodiscard]] bool in_one_window(const Range& range) const {
    return range.begin >> window_bits_ == (range.end - 1) >> window_bits_;
  }

  unsigned window_bits_ = 0;
  std::vector<std::vector<Entry>> windows_;  ///< each by low end
  std::vector<std::vector<Union>> levels_;   ///< for 8, 64, ... windows
  Union gathered_;
  Union merged_;
  Union window_;
  std::uint64_t work_ = 0;
};

/// place_in_order() for many items with some hundred alive at a time: the same answer, but faster,
/// since it reads only those. Empty if the budget ends first.
[[nodiscard]] Layout place_by_time(const Instance& instance,
                                   const std::vector<std::uint32_t>& order, Budget& budget);

}  // namespace ho::packing
