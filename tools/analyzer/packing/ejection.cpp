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
  std::vector<std::int64_t> offsets = start.offsets;
  pool_.clear();
  for (std::uint32_t i = 0; i < items.size(); ++i) {
    if (items[i].bytes > capacity_) return false;
    if (offsets[i] >= 0 && offsets[i] + items[i].bytes <= capacity_) continue;
    offsets[i] = -1;
    pool_.push_back(i);
  }
  placed_.emplace(instance_, neighbours_, std::move(offsets));
  while (!pool_.empty()) {
    const std::size_t pick = prng_.below(4) == 0 ? prng_.below(pool_.size()) : pool_.size() - 1;
    const std::uint32_t item = pool_[pick];
    pool_.erase(pool_.begin() + static_cast<std::ptrdiff_t>(pick));
    taken_.clear();
    const std::uint64_t work = placed_->around(item, [this](const Taken& each) {
      taken_.push_back(each);
      return true;
    });
    const std::int64_t bytes = items[item].bytes;
    std::int64_t offset = find_hole(bytes);
    if (offset < 0) {
      offset = cheapest_place(bytes);
      displace(offset, offset + bytes);
    }
    HO_CHECK(offset >= 0 && offset + bytes <= capacity_);
    placed_->add(item, offset);
    budget.spend(100 + work +
                 3 * taken_.size() * static_cast<std::uint64_t>(std::bit_width(taken_.size())));
    if (budget.spent()) return pool_.empty();
  }
  return true;
}

Layout EjectionSearch::layout() const {
  HO_CHECK(placed_ && pool_.empty());
  Layout out{placed_->offsets(), 0};
  for (std::size_t i = 0; i < out.offsets.size(); ++i) {
    out.height_bytes = std::max(out.height_bytes, out.offsets[i] + instance_.items[i].bytes);
  }
  return out;
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
  costs_.clear();
  for (const Taken& each : taken_) {
    const Item& item = instance_.items[each.item];
    costs_.push_back(displaced_[each.item] * static_cast<double>(item.bytes) *
                     std::sqrt(static_cast<double>(length_of(item))));
    tops_.emplace_back(each.top, costs_.back());
  }
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
    for (; a < taken_.size() && taken_[a].low < p + bytes; ++a) begun += costs_[a];
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
    if (b < taken_.size()) begun += costs_[b];
  }
  return best;
}

void EjectionSearch::displace(std::int64_t low, std::int64_t top) {
  for (const Taken& each : taken_) {
    if (each.low >= top || each.top <= low) continue;
    placed_->remove(each.item);
    displaced_[each.item] += 1;
    pool_.push_back(each.item);
  }
}

}  // namespace ho::packing
