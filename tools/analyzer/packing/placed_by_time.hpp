#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tools/analyzer/packing/budget.hpp"
#include "tools/analyzer/packing/greedy.hpp"
#include "tools/analyzer/packing/instance.hpp"

namespace ho::packing {

/// Items that have their bytes, looked up by time: where among those that meet another one is the
/// tightest hole. Sections are cut into windows; each window lists what is alive in it in order of
/// low ends, so that a short item looks through one list that is sorted already. Eight windows, and
/// eight times eight, have the union of what is taken in them for items that span all of it.
/// A value with one user.
class PlacedByTime {
 public:
  /// Chooses the windows by the lengths of `instance`'s items.
  explicit PlacedByTime(const Instance& instance);

  void add(const Item& item, std::int64_t offset);

  /// @return the offset of the tightest hole between all that the item meets, the lowest among
  ///         equals; above them where none is large enough.
  [[nodiscard]] std::int64_t place(const Item& item);

  /// Entries read or moved since the last call.
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
  /// Disjoint, ascending; none touches the next.
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
  std::vector<std::vector<Union>> levels_;   ///< of 8, 64, ... windows
  Union gathered_;
  Union merged_;
  Union window_;
  std::uint64_t work_ = 0;
};

/// place_in_order() for problems of many items of which some hundred are alive at a time: the same
/// answer, sooner, since it looks at those only. Empty if the budget ends before.
[[nodiscard]] Layout place_by_time(const Instance& instance,
                                   const std::vector<std::uint32_t>& order, Budget& budget);

}  // namespace ho::packing
