#include "tools/analyzer/packing/placed_by_time.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "common/base/check.hpp"

namespace ho::packing {
namespace {

/// A window is this fraction of the mean lifetime. An item is then in few lists, and a list has few
/// items that an item of mean length does not meet.
constexpr std::uint64_t kWindowsPerLifetime = 4;
constexpr unsigned kWindowBitsMin = 4;

}  // namespace

PlacedByTime::PlacedByTime(const Instance& instance) {
  std::uint64_t sum = 0;
  for (const Item& item : instance.items) sum += static_cast<std::uint64_t>(length_of(item));
  const std::uint64_t mean = sum / std::max<std::size_t>(1, instance.items.size());
  window_bits_ =
      std::max(kWindowBitsMin, static_cast<unsigned>(std::bit_width(mean / kWindowsPerLifetime)));
  std::size_t count = (std::size_t{instance.sections} >> window_bits_) + 1;
  windows_.resize(count);
  while (count > (std::size_t{1} << kArityBits)) {
    count = (count >> kArityBits) + 1;
    levels_.emplace_back(count);
  }
}

void PlacedByTime::add(const Item& item, std::int64_t offset) {
  HO_CHECK(offset >= 0 && item.bytes > 0);
  add(item.first, {offset, offset + item.bytes});
  if (item.wrapped()) add(item.second, {offset, offset + item.bytes});
}

void PlacedByTime::add(const Range& range, Taken taken) {
  std::uint32_t first = range.begin >> window_bits_;
  std::uint32_t last = (range.end - 1) >> window_bits_;
  for (std::uint32_t w = first; w <= last; ++w) {
    std::vector<Entry>& window = windows_[w];
    const auto at =
        std::upper_bound(window.begin(), window.end(), taken.low,
                         [](std::int64_t low, const Entry& each) { return low < each.low; });
    work_ += 20 + static_cast<std::uint64_t>(window.end() - at) / 4;
    window.insert(at, {taken.low, taken.top, range});
  }
  for (std::vector<Union>& level : levels_) {
    first >>= kArityBits;
    last >>= kArityBits;
    for (std::uint32_t u = first; u <= last; ++u) add_to_union(level[u], taken);
  }
}

void PlacedByTime::add_to_union(Union& all, Taken taken) {
  const auto first =
      std::lower_bound(all.begin(), all.end(), taken.low,
                       [](const Taken& each, std::int64_t low) { return each.top < low; });
  auto past = first;
  for (; past != all.end() && past->low <= taken.top; ++past) {
    taken.low = std::min(taken.low, past->low);
    taken.top = std::max(taken.top, past->top);
  }
  work_ += 10 + static_cast<std::uint64_t>(all.end() - first) / 8;
  if (first == past) {
    all.insert(first, taken);
    return;
  }
  *first = taken;
  all.erase(first + 1, past);
}

std::int64_t PlacedByTime::place(const Item& item) {
  TightestHole hole(item.bytes);
  if (!item.wrapped() && in_one_window(item.first)) {
    for (const Entry& each : windows_[item.first.begin >> window_bits_]) {
      ++work_;
      if (each.range.begin >= item.first.end || item.first.begin >= each.range.end) continue;
      if (!hole.add(each.low, each.top)) break;
    }
    return hole.offset();
  }
  gathered_.clear();
  gather(item.first);
  if (item.wrapped()) gather(item.second);
  for (const Taken& each : gathered_) {
    if (!hole.add(each.low, each.top)) break;
  }
  return hole.offset();
}

std::uint64_t PlacedByTime::take_work() { return std::exchange(work_, 0); }

/// Adds the bytes taken within the range to `gathered_`.
void PlacedByTime::gather(const Range& range) {
  const std::uint32_t first = range.begin >> window_bits_;
  const std::uint32_t last = (range.end - 1) >> window_bits_;
  gather_window(first, range);
  std::uint32_t next = first + 1;
  while (next < last) {
    // The largest union that begins here and ends before the last window.
    std::size_t level = 0;
    while (level < levels_.size()) {
      const unsigned bits = kArityBits * static_cast<unsigned>(level + 1);
      const std::uint32_t size = std::uint32_t{1} << bits;
      if ((next & (size - 1)) != 0 || last - next < size) break;
      ++level;
    }
    if (level == 0) {
      gather_window(next++, range);
      continue;
    }
    const unsigned bits = kArityBits * static_cast<unsigned>(level);
    merge(levels_[level - 1][next >> bits]);
    next += std::uint32_t{1} << bits;
  }
  if (last > first) gather_window(last, range);
}

void PlacedByTime::gather_window(std::uint32_t window, const Range& range) {
  window_.clear();
  for (const Entry& each : windows_[window]) {
    ++work_;
    if (each.range.begin >= range.end || range.begin >= each.range.end) continue;
    if (window_.empty() || window_.back().top < each.low) {
      window_.push_back({each.low, each.top});
    } else {
      window_.back().top = std::max(window_.back().top, each.top);
    }
  }
  merge(window_);
}

/// Replaces `gathered_` by its union with another.
void PlacedByTime::merge(const Union& other) {
  if (other.empty()) return;
  work_ += gathered_.size() + other.size();
  if (gathered_.empty()) {
    gathered_ = other;
    return;
  }
  merged_.clear();
  auto a = gathered_.begin();
  auto b = other.begin();
  while (a != gathered_.end() || b != other.end()) {
    const bool from_a = b == other.end() || (a != gathered_.end() && a->low <= b->low);
    const Taken next = from_a ? *a++ : *b++;
    if (merged_.empty() || merged_.back().top < next.low) {
      merged_.push_back(next);
    } else {
      merged_.back().top = std::max(merged_.back().top, next.top);
    }
  }
  gathered_.swap(merged_);
}

Layout place_by_time(const Instance& instance, const std::vector<std::uint32_t>& order,
                     Budget& budget) {
  const std::vector<Item>& items = instance.items;
  HO_CHECK(order.size() == items.size());
  Layout out{std::vector<std::int64_t>(items.size(), -1), 0};
  PlacedByTime placed(instance);
  for (const std::uint32_t i : order) {
    out.offsets[i] = placed.place(items[i]);
    out.height_bytes = std::max(out.height_bytes, out.offsets[i] + items[i].bytes);
    placed.add(items[i], out.offsets[i]);
    budget.spend(100 + placed.take_work());
    if (budget.spent()) return {};
  }
  return out;
}

}  // namespace ho::packing
