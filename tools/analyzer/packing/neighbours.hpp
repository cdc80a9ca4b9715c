#pragma once

#include <cstdint>
#include <vector>

#include "tools/analyzer/packing/instance.hpp"

namespace ho::packing {

/// Finds the items that share a section with an item without storing all pairs: 62,000 buffers with
/// thousands alive at a time have 10^8 pairs.
class Neighbours {
 public:
  /// `instance` must outlive this object. O(n + kEntriesMax) memory.
  explicit Neighbours(const Instance& instance);

  /// Calls visit(j) once for each item that shares a section with i. O(result + items alive at the
  /// begin of i).
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

  /// Whether walking all items is faster than collecting and sorting the neighbours of one.
  [[nodiscard]] bool dense() const {
    const std::uint64_t count = instance_.items.size();
    return count * count / 32 < pairs_;
  }
  /// A lower bound for the work of placing all items one by one.
  [[nodiscard]] std::uint64_t order_work() const {
    return dense() ? instance_.items.size() * instance_.items.size() : 2 * pairs_;
  }
  /// The same for a call that does little else: includes sorting some hundred neighbours per item.
  [[nodiscard]] std::uint64_t whole_order_work() const {
    return dense() ? order_work() : 6 * order_work();
  }

  /// The work of place_by_time(), with a reserve (measured: up to 1.7 times the pairs).
  [[nodiscard]] std::uint64_t by_time_work() const {
    return 5 * pairs_ + 600 * instance_.items.size();
  }

 private:
  static constexpr std::size_t kEntriesMax = std::size_t{1} << 24;

  const Instance& instance_;
  std::uint32_t stride_ = 32;
  std::vector<std::uint32_t> alive_;  ///< per stride: items that began before and have not ended
  std::vector<std::uint32_t> alive_begin_;  ///< indices into alive_
  std::vector<std::uint32_t> wrapped_;
  std::uint64_t pairs_ = 0;  ///< pairs of neighbours, without those across the end of the cycle
};

}  // namespace ho::packing
