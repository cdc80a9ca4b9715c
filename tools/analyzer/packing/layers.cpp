#include "tools/analyzer/packing/layers.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "common/base/check.hpp"

namespace ho::packing {
namespace {

/// The items of an instance that live in more than a given number of sections, or across the end of
/// the cycle.
struct LongItems {
  Instance instance;
  std::vector<std::uint32_t> ids;  ///< parallel to instance.items
};

LongItems long_items(const Instance& whole, std::int64_t long_sections) {
  LongItems out;
  out.instance.sections = whole.sections;
  for (std::uint32_t i = 0; i < whole.items.size(); ++i) {
    if (!whole.items[i].wrapped() && length_of(whole.items[i]) <= long_sections) continue;
    out.instance.items.push_back(whole.items[i]);
    out.ids.push_back(i);
  }
  return out;
}

/// Sweeps over time and places short items in the room that long ones leave.
class ShortItems {
 public:
  ShortItems(const Instance& instance, std::int64_t long_sections, Layout start)
      : items_(instance.items),
        out_(std::move(start)),
        enters_(std::size_t{instance.sections} + 1),
        leaves_(std::size_t{instance.sections} + 1) {
    for (std::uint32_t i = 0; i < items_.size(); ++i) {
      if (out_.offsets[i] < 0) continue;
      const Item& item = items_[i];
      // A long item is present from the earliest section in which a short item that meets it may be
      // alive.
      const auto early = static_cast<std::uint32_t>(
          std::max<std::int64_t>(0, std::int64_t{item.first.begin} - long_sections));
      enter_later(early, i, item.first.begin);
      leaves_[item.first.end].push_back({i, item.first.begin});
      if (!item.wrapped()) continue;
      enter_later(0, i, 0);
      leaves_[item.second.end].push_back({i, 0});
    }
  }

  Layout run(Budget& budget) {
    const auto sections = static_cast<std::uint32_t>(enters_.size() - 1);
    std::uint32_t next = 0;
    std::vector<std::uint32_t> starting;
    for (std::uint32_t s = 0; s < sections; ++s) {
      for (const Event& event : leaves_[s]) leave(event);
      for (const Event& event : enters_[s]) enter(event);
      starting.clear();
      for (; next < items_.size() && items_[next].first.begin == s; ++next) {
        if (out_.offsets[next] < 0) starting.push_back(next);
      }
      std::stable_sort(starting.begin(), starting.end(), [&](std::uint32_t a, std::uint32_t b) {
        return items_[a].bytes > items_[b].bytes;
      });
      for (const std::uint32_t i : starting) place(i);
      budget.spend(10 + starting.size() * (20 + present_.size()));
      if (budget.spent()) return {};
    }
    return std::move(out_);
  }

 private:
  /// An item on one of its ranges of sections; `begin` tells which.
  struct Event {
    std::uint32_t item;
    std::uint32_t begin;
  };
  struct Present {
    std::int64_t low;
    std::int64_t top;
    std::uint32_t begin;
    std::uint32_t item;
    bool operator<(const Present& other) const {
      return std::tie(low, item, begin) < std::tie(other.low, other.item, other.begin);
    }
  };

  [[nodiscard]] Present present(const Event& event) const {
    const std::int64_t low = out_.offsets[event.item];
    return {low, low + items_[event.item].bytes, event.begin, event.item};
  }
  void enter_later(std::uint32_t section, std::uint32_t item, std::uint32_t begin) {
    enters_[section].push_back({item, begin});
  }
  void enter(const Event& event) {
    const Present entry = present(event);
    present_.insert(std::lower_bound(present_.begin(), present_.end(), entry), entry);
  }
  void leave(const Event& event) {
    const auto at = std::lower_bound(present_.begin(), present_.end(), present(event));
    HO_CHECK(at != present_.end() && at->item == event.item);
    present_.erase(at);
  }
  void place(std::uint32_t i) {
    const Item& item = items_[i];
    TightestHole hole(item.bytes);
    for (const Present& each : present_) {
      if (each.begin < item.first.end && !hole.add(each.low, each.top)) break;
    }
    out_.offsets[i] = hole.offset();
    out_.height_bytes = std::max(out_.height_bytes, out_.offsets[i] + item.bytes);
    enter({i, item.first.begin});
    leaves_[item.first.end].push_back({i, item.first.begin});
  }

  const std::vector<Item>& items_;
  Layout out_;
  std::vector<std::vector<Event>> enters_;  ///< long items, per section
  std::vector<std::vector<Event>> leaves_;
  std::vector<Present> present_;  ///< by low end
};

/// Slots of one size.
struct Region {
  std::int64_t slots = 0;
  std::int64_t base_bytes = 0;
  /// Free slots, by the section in which the item that spans the end of the cycle needs them again.
  std::set<std::pair<std::uint32_t, std::int64_t>> free;
};

}  // namespace

Layout place_by_size(const Instance& instance) {
  constexpr std::size_t kSizesMax = 256;
  const std::vector<Item>& items = instance.items;
  std::map<std::int64_t, Region> regions;
  for (const Item& item : items) {
    regions[item.bytes];
    if (regions.size() > kSizesMax) return {};
  }
  std::vector<std::int64_t> slot(items.size(), 0);
  std::vector<std::uint32_t> until(items.size(),
                                   UINT32_MAX);  // per item: the end of its slot's use
  std::vector<std::vector<std::uint32_t>> ends(std::size_t{instance.sections} + 1);
  for (std::uint32_t i = 0; i < items.size(); ++i) {
    if (!items[i].wrapped()) continue;
    slot[i] = regions.at(items[i].bytes).slots++;
    until[i] = items[i].first.begin;
    ends[items[i].second.end].push_back(i);
  }
  std::uint32_t ended = 0;
  for (std::uint32_t i = 0; i < items.size(); ++i) {  // sorted by begin
    if (items[i].wrapped()) continue;
    for (; ended <= items[i].first.begin; ++ended) {
      for (const std::uint32_t j : ends[ended]) {
        regions.at(items[j].bytes).free.emplace(until[j], slot[j]);
      }
    }
    Region& region = regions.at(items[i].bytes);
    const auto free = region.free.lower_bound({items[i].first.end, 0});
    if (free == region.free.end()) {
      slot[i] = region.slots++;
    } else {
      std::tie(until[i], slot[i]) = *free;
      region.free.erase(free);
    }
    ends[items[i].first.end].push_back(i);
  }
  Layout out{std::vector<std::int64_t>(items.size(), 0), 0};
  for (auto& [bytes, region] : regions) {
    region.base_bytes = out.height_bytes;
    out.height_bytes += region.slots * bytes;
  }
  for (std::uint32_t i = 0; i < items.size(); ++i) {
    out.offsets[i] = regions.at(items[i].bytes).base_bytes + slot[i] * items[i].bytes;
  }
  return out;
}

Layout place_in_layers(const Instance& instance, std::int64_t long_sections,
                       std::int64_t enough_bytes, Budget& budget) {
  const LongItems chosen = long_items(instance, long_sections);
  const std::size_t count = chosen.ids.size();
  const Neighbours neighbours(chosen.instance);
  budget.spend(100 * instance.items.size());
  Layout best;
  for (const Order order : {Order::kBytes, Order::kArea}) {
    if (neighbours.whole_order_work() > budget.left()) break;  // it would not finish
    const Layout placed =
        place_in_order(chosen.instance, neighbours, greedy_order(chosen.instance, order),
                       std::vector<std::int64_t>(count, -1), budget);
    if (placed.offsets.size() != count) break;
    Layout start{std::vector<std::int64_t>(instance.items.size(), -1), placed.height_bytes};
    for (std::size_t i = 0; i < count; ++i) start.offsets[chosen.ids[i]] = placed.offsets[i];
    Layout next = ShortItems(instance, long_sections, std::move(start)).run(budget);
    if (next.offsets.empty()) break;
    if (best.offsets.empty() || next.height_bytes < best.height_bytes) best = std::move(next);
    if (best.height_bytes <= enough_bytes) break;
  }
  return best;
}

}  // namespace ho::packing
