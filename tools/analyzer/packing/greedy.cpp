#include "tools/analyzer/packing/greedy.hpp"

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "common/base/check.hpp"
#include "tools/analyzer/packing/placed_items.hpp"

namespace ho::packing {
namespace {

/// Logarithm of the length to base four.
double length_class(const Item& item) {
  const std::uint64_t whole = std::bit_width(static_cast<std::uint64_t>(length_of(item))) / 2;
  return static_cast<double>(whole);
}

/// Free ranges of an address space that grows at the top. Best fit, with merging.
class FreeRanges {
 public:
  explicit FreeRanges(std::int64_t bottom) : top_(bottom) {}

  enum class Side : std::uint8_t { kLow, kHigh };

  /// `side`: the end of the hole to use.
  std::int64_t take(std::int64_t bytes, Side side) {
    const auto hole = by_size_.lower_bound({bytes, 0});
    if (hole == by_size_.end()) return grow(bytes);
    const auto [size, offset] = *hole;
    erase(offset, size);
    if (size == bytes) return offset;
    if (side == Side::kLow) {
      insert(offset + bytes, size - bytes);
      return offset;
    }
    insert(offset, size - bytes);
    return offset + size - bytes;
  }
  void give(std::int64_t offset, std::int64_t bytes) {
    auto next = by_offset_.lower_bound(offset);
    if (next != by_offset_.end() && next->first == offset + bytes) {
      bytes += next->second;
      erase(next->first, next->second);
      next = by_offset_.lower_bound(offset);
    }
    if (next != by_offset_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == offset) {
        offset = before->first;
        bytes += before->second;
        erase(before->first, before->second);
      }
    }
    insert(offset, bytes);
  }
  [[nodiscard]] std::int64_t top() const { return top_; }

 private:
  std::int64_t grow(std::int64_t bytes) {
    std::int64_t offset = top_;
    if (!by_offset_.empty()) {
      const auto last = std::prev(by_offset_.end());
      if (last->first + last->second == top_) {
        offset = last->first;
        erase(last->first, last->second);
      }
    }
    top_ = offset + bytes;
    return offset;
  }
  void insert(std::int64_t offset, std::int64_t bytes) {
    by_offset_.emplace(offset, bytes);
    by_size_.emplace(bytes, offset);
  }
  void erase(std::int64_t offset, std::int64_t bytes) {
    by_offset_.erase(offset);
    by_size_.erase({bytes, offset});
  }
  std::map<std::int64_t, std::int64_t> by_offset_;
  std::set<std::pair<std::int64_t, std::int64_t>> by_size_;
  std::int64_t top_;
};

}  // namespace

Layout place_by_sweep(const Instance& instance) {
  const std::vector<Item>& items = instance.items;
  Layout out;
  out.offsets.assign(items.size(), 0);
  std::int64_t bottom = 0;
  std::vector<std::vector<std::uint32_t>> ends(std::size_t{instance.sections} + 1);
  for (std::uint32_t i = 0; i < items.size(); ++i) {
    if (!items[i].wrapped()) {
      ends[items[i].first.end].push_back(i);
      continue;
    }
    out.offsets[i] = bottom;
    bottom += items[i].bytes;
  }
  FreeRanges ranges(bottom);
  std::vector<std::uint32_t> starting;
  std::uint32_t next = 0;
  for (std::uint32_t s = 0; s < instance.sections; ++s) {
    for (const std::uint32_t i : ends[s]) ranges.give(out.offsets[i], items[i].bytes);
    starting.clear();
    for (; next < items.size() && items[next].first.begin == s; ++next) {
      if (!items[next].wrapped()) starting.push_back(next);
    }
    std::stable_sort(starting.begin(), starting.end(), [&](std::uint32_t a, std::uint32_t b) {
      return items[a].bytes > items[b].bytes;
    });
    for (const std::uint32_t i : starting) {
      const bool low = length_of(items[i]) > std::int64_t{instance.sections} / 64;
      out.offsets[i] =
          ranges.take(items[i].bytes, low ? FreeRanges::Side::kLow : FreeRanges::Side::kHigh);
    }
  }
  out.height_bytes = ranges.top();
  return out;
}

Layout place_in_order(const Instance& instance, const Neighbours& neighbours,
                      const std::vector<std::uint32_t>& order, std::vector<std::int64_t> start,
                      Budget& budget) {
  const std::vector<Item>& items = instance.items;
  HO_CHECK(order.size() == items.size());
  PlacedItems placed(instance, neighbours, std::move(start));
  std::int64_t height_bytes = 0;
  for (const std::uint32_t i : order) {
    if (placed.offsets()[i] < 0) {
      TightestHole hole(items[i].bytes);
      budget.spend(placed.around(
          i, [&hole](const PlacedItems::Taken& each) { return hole.add(each.low, each.top); }));
      if (budget.spent()) return {};
      placed.add(i, hole.offset());
    }
    height_bytes = std::max(height_bytes, placed.offsets()[i] + items[i].bytes);
  }
  return {placed.offsets(), height_bytes};
}

std::vector<std::int64_t> fullest_sections(const Instance& instance) {
  const std::vector<std::int64_t> load = section_loads(instance);
  // The largest value of each power-of-two window; any range is the union of two windows.
  std::vector<std::vector<std::int64_t>> windows{load};
  for (std::size_t half = 1; 2 * half <= instance.sections; half *= 2) {
    const std::vector<std::int64_t>& last = windows.back();
    std::vector<std::int64_t> next(last.size());
    for (std::size_t s = 0; s + 2 * half <= instance.sections; ++s) {
      next[s] = std::max(last[s], last[s + half]);
    }
    windows.push_back(std::move(next));
  }
  const auto largest = [&](const Range& range) {
    if (range.begin == range.end) return std::int64_t{0};
    const auto level = static_cast<std::size_t>(std::bit_width(range.end - range.begin)) - 1;
    return std::max(windows[level][range.begin],
                    windows[level][range.end - (std::uint32_t{1} << level)]);
  };
  std::vector<std::int64_t> out;
  out.reserve(instance.items.size());
  for (const Item& item : instance.items) {
    out.push_back(std::max(largest(item.first), largest(item.second)));
  }
  return out;
}

std::vector<std::uint32_t> greedy_order(const Instance& instance, Order order) {
  const std::vector<Item>& items = instance.items;
  using Key = std::pair<double, double>;
  std::vector<std::pair<Key, std::uint32_t>> sorted;
  sorted.reserve(items.size());
  std::vector<std::int64_t> fullest;
  if (order == Order::kFullestSection) fullest = fullest_sections(instance);
  for (std::uint32_t i = 0; i < items.size(); ++i) {
    const auto bytes = static_cast<double>(items[i].bytes);
    const auto length = static_cast<double>(length_of(items[i]));
    Key key;
    switch (order) {
      case Order::kBytes: key = {bytes, length}; break;
      case Order::kFullestSection: key = {static_cast<double>(fullest[i]), bytes * length}; break;
      case Order::kArea: key = {bytes * length, bytes}; break;
      case Order::kLength: key = {length, bytes}; break;
      case Order::kLengthClass: key = {length_class(items[i]), bytes}; break;
    }
    sorted.push_back({{-key.first, -key.second}, i});
  }
  std::sort(sorted.begin(), sorted.end());
  std::vector<std::uint32_t> out;
  out.reserve(sorted.size());
  for (const auto& [key, i] : sorted) out.push_back(i);
  return out;
}

}  // namespace ho::packing
