#include "tools/analyzer/packing/ejection.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "common/base/check.hpp"

namespace ho::packing {

EjectionSearch::EjectionSearch(const Instance& instance, const Neighbours& neighbours)
    : instance_(instance), neighbours_(neighbours) {
  displaced_.assign(instance.items.size(), 1);
}

bool EjectionSearch::run(const Layout& start, std::int64_t capacity_bytes, Budget& budget) {
  const std::vector<Item>& items = instance_.items;
  HO_CHECK(start.offsets.size() == items.size());
  capacity_ = capacity_bytes;
  offsets_ = start.offsets;
  pool_.clear();
  for (std::uint32_t i = 0; i < items.size(); ++i) {
    if (items[i].bytes > capacity_) return false;
    if (offsets_[i] >= 0 && offsets_[i] + items[i].bytes <= capacity_) continue;
    offsets_[i] = -1;
    pool_.push_back(i);
  }
  while (!pool_.empty()) {
    const std::size_t pick = prng_.below(4) == 0 ? prng_.below(pool_.size()) : pool_.size() - 1;
    const std::uint32_t item = pool_[pick];
    pool_.erase(pool_.begin() + static_cast<std::ptrdiff_t>(pick));
    ++step_;
    gather(item);
    const std::int64_t bytes = items[item].bytes;
    std::int64_t offset = find_hole(bytes);
    if (offset < 0) {
      offset = cheapest_place(bytes);
      displace(offset, offset + bytes);
    }
    HO_CHECK(offset >= 0 && offset + bytes <= capacity_);
    offsets_[item] = offset;
    budget.spend(100 + 2 * seen_ +
                 4 * taken_.size() * static_cast<std::uint64_t>(std::bit_width(taken_.size())));
    if (budget.spent()) return pool_.empty();
  }
  return true;
}

Layout EjectionSearch::layout() const {
  HO_CHECK(pool_.empty());
  Layout out{offsets_, 0};
  for (std::size_t i = 0; i < offsets_.size(); ++i) {
    out.height_bytes = std::max(out.height_bytes, offsets_[i] + instance_.items[i].bytes);
  }
  return out;
}

void EjectionSearch::gather(std::uint32_t item) {
  taken_.clear();
  seen_ = 0;
  neighbours_.each(item, [&](std::uint32_t j) {
    ++seen_;
    if (offsets_[j] < 0) return;
    const Item& other = instance_.items[j];
    const double cost = displaced_[j] * static_cast<double>(other.bytes) *
                        std::sqrt(static_cast<double>(length_of(other)));
    taken_.push_back({offsets_[j], offsets_[j] + instance_.items[j].bytes, cost, j});
  });
  std::sort(taken_.begin(), taken_.end(),
            [](const Taken& a, const Taken& b) { return a.low < b.low; });
}

/// The tightest hole within the capacity, or -1.
std::int64_t EjectionSearch::find_hole(std::int64_t bytes) const {
  std::int64_t top = 0;
  std::int64_t best = -1;
  std::int64_t best_size = INT64_MAX;
  for (const Taken& each : taken_) {
    const std::int64_t size = each.low - top;
    if (size >= bytes && size < best_size) {
      best = top;
      best_size = size;
    }
    top = std::max(top, each.top);
  }
  const std::int64_t size = capacity_ - top;
  if (size >= bytes && size < best_size) best = top;
  return best;
}

/// The offset at which displaced items cost least: next to an end of the capacity or of a
/// neighbour.
std::int64_t EjectionSearch::cheapest_place(std::int64_t bytes) {
  tops_.clear();
  for (const Taken& each : taken_) tops_.emplace_back(each.top, each.cost);
  std::sort(tops_.begin(), tops_.end());
  double best_cost = 1e300;
  std::int64_t best = 0;
  const auto offer = [&](std::int64_t offset, double cost) {
    if (cost < best_cost) {
      best_cost = cost;
      best = offset;
    }
  };
  // Above a top end: p = tops_[t]. Displaces items with low < p + bytes, except those with top <=
  // p.
  double begun = 0;
  double ended = 0;
  std::size_t a = 0;
  for (std::size_t t = 0; t <= tops_.size(); ++t) {
    const std::int64_t p = t == 0 ? 0 : tops_[t - 1].first;
    if (t > 0) ended += tops_[t - 1].second;
    if (t > 0 && t < tops_.size() && tops_[t].first == p) continue;
    if (p > capacity_ - bytes) break;
    for (; a < taken_.size() && taken_[a].low < p + bytes; ++a) begun += taken_[a].cost;
    offer(p, begun - ended);
  }
  // Below a low end: p = low - bytes.
  begun = 0;
  ended = 0;
  std::size_t t = 0;
  for (std::size_t b = 0; b <= taken_.size(); ++b) {
    const std::int64_t top = b == taken_.size() ? capacity_ : taken_[b].low;
    if (top >= bytes && top <= capacity_ && (b == 0 || taken_[b - 1].low != top)) {
      for (; t < tops_.size() && tops_[t].first <= top - bytes; ++t) ended += tops_[t].second;
      offer(top - bytes, begun - ended);
    }
    if (b < taken_.size()) begun += taken_[b].cost;
  }
  return best;
}

void EjectionSearch::displace(std::int64_t low, std::int64_t top) {
  for (const Taken& each : taken_) {
    if (each.low >= top || each.top <= low) continue;
    offsets_[each.item] = -1;
    displaced_[each.item] += 1;
    pool_.push_back(each.item);
  }
}

}  // namespace ho::packing
