#pragma once

#include <cstdint>
#include <vector>

#include "tools/analyzer/packing/instance.hpp"

namespace ho::packing {

/// Which items share a section with an item, without keeping all pairs (62,000 buffers of which
/// thousands are alive at once have 10^8 of them).
class Neighbours {
 public:
  /// `instance` outlives this. O(n + kEntriesMax) memory.
  explicit Neighbours(const Instance& instance);

  /// Calls visit(j) once for each item that meets i. O(result + items alive at i's begin).
  template <typename Visit>
  void each(std::uint32_t i, Visit visit) const {
    const std::vector<Item>& items = instance_.items;
    if (items[i].wrapped()) {
      for (std::uint32_t j = 0; j < items.size(); ++j) {
        if (j != i && meet(items[i], items[j])) visit(j);
      }
      return;
    }
    const std::uint32_t begin = items[i].first.begin;
    const std::uint32_t end = items[i].first.end;
    const std::uint32_t stop = i / stride_;
    for (std::uint32_t a = alive_begin_[stop]; a < alive_begin_[stop + 1]; ++a) {
      if (items[alive_[a]].first.end > begin) visit(alive_[a]);
    }
    for (std::uint32_t j = stop * stride_; j < i; ++j) {
      if (items[j].first.end > begin && !items[j].wrapped()) visit(j);
    }
    for (std::uint32_t j = i + 1; j < items.size() && items[j].first.begin < end; ++j) {
      if (!items[j].wrapped()) visit(j);
    }
    for (const std::uint32_t j : wrapped_) {
      if (meet(items[i], items[j])) visit(j);
    }
  }

  /// Whether a look at all items takes less than to gather and sort those that meet one. Of few
  /// items either takes little.
  [[nodiscard]] bool dense() const {
    const std::uint64_t count = instance_.items.size();
    return count > kFewItems && count * count / 16 < pairs_;
  }
  /// What it takes at least to place all items one after the other.
  [[nodiscard]] std::uint64_t order_work() const {
    return dense() ? instance_.items.size() * instance_.items.size() : 2 * pairs_;
  }
  /// The same where that is nearly all that is done: with the sorting of some hundred neighbours.
  [[nodiscard]] std::uint64_t whole_order_work() const {
    return dense() ? order_work() : 6 * order_work();
  }

  /// What place_by_time() takes, with room to spare (measured: up to 1.7 times the pairs).
  [[nodiscard]] std::uint64_t by_time_work() const {
    return 5 * pairs_ + 600 * instance_.items.size();
  }

 private:
  static constexpr std::uint64_t kFewItems = 4600;
  static constexpr std::size_t kEntriesMax = std::size_t{1} << 24;

  const Instance& instance_;
  std::uint32_t stride_ = 32;
  std::vector<std::uint32_t> alive_;        ///< per stride, items begun before and not ended
  std::vector<std::uint32_t> alive_begin_;  ///< into alive_
  std::vector<std::uint32_t> wrapped_;
  std::uint64_t pairs_ = 0;  ///< that meet, those round the cycle's end not counted
};

}  // namespace ho::packing
