#include "tools/analyzer/packing/instance.hpp"

#include <algorithm>
#include <numeric>

#include "common/base/check.hpp"

namespace ho::packing {
namespace {

/// Lifetimes in slots of compressed time; wrapped ones have end > slots.
struct Slots {
  std::vector<std::int64_t> begin;
  std::vector<std::int64_t> end;
  std::int64_t count = 0;
};

/// Numbers distinct moments in order. First add all of them, then call number(), then of().
class Moments {
 public:
  void reserve(std::size_t count) { times_.reserve(count); }
  void add(std::int64_t t) { times_.push_back(t); }
  void number() {
    const auto [low, high] = std::minmax_element(times_.begin(), times_.end());
    low_ = *low;
    const std::uint64_t range =
        static_cast<std::uint64_t>(*high) - static_cast<std::uint64_t>(low_);
    if (range < kRangePerTime * times_.size()) {
      number_.assign(static_cast<std::size_t>(range) + 1, 0);
      for (const std::int64_t t : times_) number_[static_cast<std::size_t>(t - low_)] = 1;
      for (std::int64_t& each : number_) {
        const bool occurs = each != 0;
        each = count_;
        count_ += occurs ? 1 : 0;
      }
      return;
    }
    std::sort(times_.begin(), times_.end());
    times_.erase(std::unique(times_.begin(), times_.end()), times_.end());
    count_ = static_cast<std::int64_t>(times_.size());
  }
  [[nodiscard]] std::int64_t count() const { return count_; }
  /// The number of a moment that was added.
  [[nodiscard]] std::int64_t of(std::int64_t t) const {
    if (!number_.empty()) return number_[static_cast<std::size_t>(t - low_)];
    return std::lower_bound(times_.begin(), times_.end(), t) - times_.begin();
  }

 private:
  /// If the range of moments is at most this many times their number, a table is faster than
  /// sorting. This holds for positions of a plan, not always for times in a file.
  static constexpr std::uint64_t kRangePerTime = 4;

  std::vector<std::int64_t> times_;
  std::vector<std::int64_t> number_;  // starts at low_; empty: the range is too large
  std::int64_t low_ = 0;
  std::int64_t count_ = 0;
};

Slots slots_of(const std::vector<Lifetime>& lifetimes, const std::vector<std::uint32_t>& ids,
               std::int64_t cycle) {
  const auto normal = [&](std::int64_t t) {
    return cycle == 0 ? t : ((t % cycle) + cycle) % cycle;
  };
  Moments times;
  times.reserve(2 * ids.size() + 1);
  for (const std::uint32_t id : ids) {
    times.add(normal(lifetimes[id].begin));
    times.add(normal(lifetimes[id].end));
  }
  if (cycle != 0) times.add(0);
  times.number();
  Slots out;
  out.count = times.count() - (cycle == 0 ? 1 : 0);
  out.begin.reserve(ids.size());
  out.end.reserve(ids.size());
  for (const std::uint32_t id : ids) {
    const Lifetime& life = lifetimes[id];
    HO_CHECK(life.begin < life.end && life.bytes > 0);
    if (cycle != 0 && life.end - life.begin >= cycle) {
      out.begin.push_back(0);
      out.end.push_back(out.count);
      continue;
    }
    const std::int64_t begin = times.of(normal(life.begin));
    std::int64_t end = times.of(normal(life.end));
    if (end <= begin) end += out.count;  // only with a cycle
    out.begin.push_back(begin);
    out.end.push_back(end);
  }
  return out;
}

/// Keeps a slot if no neighbour's live set contains its own: after it an item ends, and between it
/// and the last kept slot an item began. Renumbers the lifetimes.
void keep_maximal(Slots& slots) {
  const auto n = static_cast<std::size_t>(slots.count);
  std::vector<std::uint8_t> begins(n + 1, 0);
  std::vector<std::uint8_t> ends(n + 1, 0);
  for (std::size_t i = 0; i < slots.begin.size(); ++i) {
    begins[static_cast<std::size_t>(slots.begin[i])] = 1;
    const std::int64_t end = slots.end[i] > slots.count ? slots.end[i] - slots.count : slots.end[i];
    ends[static_cast<std::size_t>(end)] = 1;
  }
  std::vector<std::int64_t> kept(n + 1, 0);  // number of kept slots before
  bool begun = true;                         // slot 0 has the wrapped lifetimes
  for (std::size_t s = 0; s < n; ++s) {
    begun = begun || begins[s] != 0;
    const bool keep = begun && (ends[s + 1] != 0 || s + 1 == n);
    kept[s + 1] = kept[s] + (keep ? 1 : 0);
    if (keep) begun = false;
  }
  for (std::size_t i = 0; i < slots.begin.size(); ++i) {
    slots.begin[i] = kept[static_cast<std::size_t>(slots.begin[i])];
    slots.end[i] = slots.end[i] > slots.count
                       ? kept[n] + kept[static_cast<std::size_t>(slots.end[i] - slots.count)]
                       : kept[static_cast<std::size_t>(slots.end[i])];
  }
  slots.count = kept[n];
}

Part part_of(const std::vector<Lifetime>& lifetimes, const std::vector<std::uint32_t>& ids,
             const Slots& slots, std::int64_t from, std::int64_t to) {
  std::vector<std::uint32_t> mine;
  for (std::uint32_t i = 0; i < ids.size(); ++i) {
    if (slots.begin[i] >= from && slots.begin[i] < to) mine.push_back(i);
  }
  std::stable_sort(mine.begin(), mine.end(), [&](std::uint32_t a, std::uint32_t b) {
    return slots.begin[a] < slots.begin[b];
  });
  Part part;
  part.instance.sections = static_cast<std::uint32_t>(to - from);
  std::vector<std::int64_t> change(static_cast<std::size_t>(to - from) + 1, 0);
  for (const std::uint32_t i : mine) {
    const std::int64_t bytes = lifetimes[ids[i]].bytes;
    Item item{bytes, {static_cast<std::uint32_t>(slots.begin[i] - from), 0}, {}};
    item.first.end = static_cast<std::uint32_t>(std::min(slots.end[i], to) - from);
    change[item.first.begin] += bytes;
    change[item.first.end] -= bytes;
    if (slots.end[i] > slots.count) {
      item.second.end = static_cast<std::uint32_t>(slots.end[i] - slots.count);
      change[0] += bytes;
      change[item.second.end] -= bytes;
    }
    part.instance.items.push_back(item);
    part.ids.push_back(ids[i]);
  }
  std::int64_t sum = 0;
  for (const std::int64_t delta : change) {
    part.instance.load_bytes = std::max(part.instance.load_bytes, sum += delta);
  }
  return part;
}

struct Pending {
  std::vector<std::uint32_t> ids;
  std::int64_t base_bytes = 0;
};

/// Appends the parts of `pending` that are solved as they are. Parts in which an item is alive
/// throughout go back to `queue` without that item.
void cut_once(const std::vector<Lifetime>& lifetimes, std::int64_t cycle, const Pending& pending,
              std::vector<Pending>& queue, Parts& out) {
  Slots slots = slots_of(lifetimes, pending.ids, cycle);
  keep_maximal(slots);
  std::vector<std::int64_t> crossing(static_cast<std::size_t>(slots.count) + 1, 0);
  bool wraps = false;
  for (std::size_t i = 0; i < slots.begin.size(); ++i) {
    wraps = wraps || slots.end[i] > slots.count;
    crossing[static_cast<std::size_t>(slots.begin[i])] += 1;
    crossing[static_cast<std::size_t>(std::min(slots.end[i], slots.count) - 1)] -= 1;
  }
  std::vector<std::int64_t> cuts{0};
  std::int64_t alive = 0;
  for (std::int64_t s = 0; s < slots.count; ++s) {
    alive += crossing[static_cast<std::size_t>(s)];
    if (alive == 0 && !wraps) cuts.push_back(s + 1);
  }
  if (wraps) cuts.push_back(slots.count);
  std::vector<std::vector<std::uint32_t>> members(cuts.size() - 1);
  for (std::uint32_t i = 0; i < pending.ids.size(); ++i) {
    const auto at = std::upper_bound(cuts.begin(), cuts.end(), slots.begin[i]) - cuts.begin() - 1;
    members[static_cast<std::size_t>(at)].push_back(i);
  }
  for (std::size_t p = 0; p + 1 < cuts.size(); ++p) {
    Pending rest{{}, pending.base_bytes};
    std::vector<std::uint32_t> ids;
    Slots own;
    own.count = slots.count;
    for (const std::uint32_t i : members[p]) {
      const std::uint32_t id = pending.ids[i];
      if (slots.end[i] - slots.begin[i] >= cuts[p + 1] - cuts[p]) {
        out.fixed_offsets[id] = rest.base_bytes;
        rest.base_bytes += lifetimes[id].bytes;
        continue;
      }
      rest.ids.push_back(id);
      own.begin.push_back(slots.begin[i]);
      own.end.push_back(slots.end[i]);
    }
    if (rest.ids.empty()) continue;
    if (rest.ids.size() < members[p].size()) {
      queue.push_back(std::move(rest));
      continue;
    }
    out.parts.push_back(part_of(lifetimes, rest.ids, own, cuts[p], cuts[p + 1]));
    out.base_bytes.push_back(rest.base_bytes);
  }
}

std::int64_t load_of(const std::vector<Lifetime>& lifetimes, std::int64_t cycle) {
  std::vector<std::uint32_t> ids(lifetimes.size());
  std::iota(ids.begin(), ids.end(), 0U);
  const Slots slots = slots_of(lifetimes, ids, cycle);
  std::vector<std::int64_t> change(static_cast<std::size_t>(slots.count) + 1, 0);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::int64_t bytes = lifetimes[i].bytes;
    change[static_cast<std::size_t>(slots.begin[i])] += bytes;
    change[static_cast<std::size_t>(std::min(slots.end[i], slots.count))] -= bytes;
    if (slots.end[i] <= slots.count) continue;
    change[0] += bytes;
    change[static_cast<std::size_t>(slots.end[i] - slots.count)] -= bytes;
  }
  std::int64_t sum = 0;
  std::int64_t peak = 0;
  for (const std::int64_t delta : change) peak = std::max(peak, sum += delta);
  return peak;
}

}  // namespace

std::vector<std::int64_t> section_loads(const Instance& instance) {
  std::vector<std::int64_t> load(std::size_t{instance.sections} + 1, 0);
  for (const Item& item : instance.items) {
    load[item.first.begin] += item.bytes;
    load[item.first.end] -= item.bytes;
    if (!item.wrapped()) continue;
    load[0] += item.bytes;
    load[item.second.end] -= item.bytes;
  }
  std::partial_sum(load.begin(), load.end(), load.begin());
  load.pop_back();
  return load;
}

Core core_of(const Instance& instance, std::int64_t heavy_bytes) {
  const std::vector<std::int64_t> load = section_loads(instance);
  std::vector<std::int64_t> heavy(load.size() + 1, 0);  // number of heavy sections before
  for (std::size_t s = 0; s < load.size(); ++s) {
    heavy[s + 1] = heavy[s] + (load[s] >= heavy_bytes ? 1 : 0);
  }
  std::vector<std::uint32_t> order(instance.items.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return length_of(instance.items[a]) > length_of(instance.items[b]);
  });
  Core out;
  for (const std::uint32_t i : order) {
    const Item& item = instance.items[i];
    const std::int64_t alive =
        heavy[item.first.end] - heavy[item.first.begin] + heavy[item.second.end];
    if (alive == 0) continue;
    if (alive == heavy.back()) {
      out.bottom.push_back(i);
      continue;
    }
    out.items.push_back(i);
    out.lifetimes.push_back(
        {item.first.begin, std::int64_t{item.first.end} + item.second.end, item.bytes});
    if (item.wrapped()) out.cycle = instance.sections;
  }
  return out;
}

Parts cut(const std::vector<Lifetime>& lifetimes, std::int64_t cycle) {
  Parts out;
  out.fixed_offsets.assign(lifetimes.size(), -1);
  if (lifetimes.empty()) return out;
  out.load_bytes = load_of(lifetimes, cycle);
  std::vector<std::uint32_t> all(lifetimes.size());
  std::iota(all.begin(), all.end(), 0U);
  std::vector<Pending> queue;
  queue.push_back({std::move(all), 0});
  while (!queue.empty()) {
    const Pending pending = std::move(queue.back());
    queue.pop_back();
    cut_once(lifetimes, cycle, pending, queue, out);
  }
  return out;
}

}  // namespace ho::packing
