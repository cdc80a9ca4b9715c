#include "tools/analyzer/packing/part_search.hpp"

#include <algorithm>
#include <utility>

#include "common/base/check.hpp"
#include "tools/analyzer/packing/layers.hpp"
#include "tools/analyzer/packing/placed_by_time.hpp"

namespace ho::packing {
namespace {

constexpr std::uint64_t kFirstRoundWork = 20'000'000;
constexpr std::uint64_t kLastRoundWork = 2'000'000'000;
constexpr std::size_t kExactItemsMax = 1500;  ///< for a whole part; nodes are slow beyond this size
/// From this number of items on, methods for any size come first.
constexpr std::size_t kManyItems = 20'000;
/// Lifetimes from which on items are placed one by one there.
constexpr std::int64_t kLongSections[] = {256, 1024, 4096};
/// Sections with this fraction of the target load are packed first. Measured: high fractions leave
/// small cores that are solved at once; lower ones help if the rest does not fit around the core.
constexpr double kCoreShares[] = {0.97, 0.94, 0.9, 0.985, 0.85, 0.75};

std::vector<double> lengths_of(const Instance& instance) {
  std::vector<double> out;
  out.reserve(instance.items.size());
  for (const Item& item : instance.items) out.push_back(static_cast<double>(length_of(item)));
  return out;
}

/// Packs a part of a core within the capacity; empty if no packing was found.
Layout pack_core_part(const Instance& instance, std::vector<double> lengths,
                      std::int64_t capacity_bytes, Budget& budget) {
  if (instance.load_bytes > capacity_bytes) return {};
  const Neighbours neighbours(instance);
  Layout first;
  for (const Order order : kOrders) {
    Layout next = place_in_order(instance, neighbours, greedy_order(instance, order),
                                 std::vector<std::int64_t>(instance.items.size(), -1), budget);
    if (next.offsets.empty()) return {};
    if (next.height_bytes <= capacity_bytes) return next;
    if (first.offsets.empty() || next.height_bytes < first.height_bytes) first = std::move(next);
  }
  if (instance.items.size() <= ExactSearch::kItemsMax) {
    Restarts restarts(instance, std::move(lengths));
    Budget half = budget.slice(budget.left() / 2);
    const std::uint64_t given = half.left();
    const Outcome outcome = restarts.run(capacity_bytes, half);
    budget.spend(given - half.left());
    if (outcome == Outcome::kFound) return restarts.layout();
    if (outcome == Outcome::kNone) return {};
  }
  EjectionSearch ejection(instance, neighbours);
  return ejection.run(first, capacity_bytes, budget) ? ejection.layout() : Layout{};
}

}  // namespace

PartSearch::PartSearch(const Instance& instance)
    : instance_(instance), best_(place_by_sweep(instance)) {
  if (instance.items.size() > kManyItems) {
    Layout by_size = place_by_size(instance);
    if (!by_size.offsets.empty()) take(std::move(by_size));
  }
  HO_CHECK(best_.height_bytes >= instance.load_bytes);
}

void PartSearch::improve(std::int64_t required_bytes, Budget& budget) {
  HO_CHECK(required_bytes >= instance_.load_bytes);
  if (best_.height_bytes <= required_bytes || budget.spent()) return;
  if (!neighbours_) {
    neighbours_ = std::make_unique<Neighbours>(instance_);
    by_bytes_ = greedy_order(instance_, Order::kBytes);
    budget.spend(200 * instance_.items.size());
  }
  const auto with = [&](std::uint64_t share_work, auto search) {
    Budget slice = budget.slice(share_work);
    const std::uint64_t given = slice.left();
    const bool found = search(slice);
    budget.spend(given - slice.left());
    return found;
  };
  const bool many = instance_.items.size() > kManyItems;
  if (many && rounds_ == 0) {
    // The estimate ignores crowds of short items within long windows, so the decision must not
    // depend on it alone.
    const std::uint64_t enough = 2 * neighbours_->by_time_work();
    const bool by_time = neighbours_->by_time_work() <= budget.left() &&
                         with(enough, [&](Budget& b) { return try_by_time(required_bytes, b); });
    if (!by_time) try_layers(required_bytes, budget);
  }
  if (best_.height_bytes <= required_bytes) return;
  if ((many ? neighbours_->whole_order_work() : neighbours_->order_work()) > budget.left()) {
    budget.spend(budget.left());  // not even one order would finish
    return;
  }
  const std::uint64_t round = rounds_++;
  const bool placed = many && round == 0 && by_bytes_placed_;  // with the first of kOrders
  if (placed) orders_tried_ = 1;
  if (!placed && orders_tried_ < std::size(kOrders)) try_greedy(required_bytes, budget);
  if (best_.height_bytes <= required_bytes) return;
  // Two of three rounds aim at the goal, the others halfway: a useful answer if the goal is out of
  // reach.
  const std::int64_t gap = best_.height_bytes - required_bytes;
  std::int64_t target = round % 3 == 2 ? required_bytes + gap / 2 : required_bytes;
  if (target <= refuted_bytes_)
    target = std::min(refuted_bytes_ + 1 + gap / 2, best_.height_bytes - 1);
  const std::uint64_t work =
      std::min(kFirstRoundWork << std::min<std::uint64_t>(round / 3, 20), kLastRoundWork);
  const bool small = instance_.items.size() <= kExactItemsMax;
  if (small && with(work, [&](Budget& b) { return try_exact(target, b); })) return;
  const double share = kCoreShares[round % std::size(kCoreShares)];
  if (with(small ? work / 4 : work, [&](Budget& b) { return try_core(share, target, b); })) return;
  with(work / 4, [&](Budget& b) { return try_ejection(best_, target, b); });
}

void PartSearch::try_greedy(std::int64_t required_bytes, Budget& budget) {
  while (orders_tried_ < std::size(kOrders) && best_.height_bytes > required_bytes &&
         !budget.spent()) {
    Layout next =
        place_in_order(instance_, *neighbours_, greedy_order(instance_, kOrders[orders_tried_++]),
                       std::vector<std::int64_t>(instance_.items.size(), -1), budget);
    if (!next.offsets.empty()) take(std::move(next));
    if (orders_tried_ == 1 && instance_.items.size() > kExactItemsMax) return;  // the core first
  }
}

/// Places all items one by one by best fit, in the orders that suit large training steps, most
/// successful first. @return whether at least one order finished.
bool PartSearch::try_by_time(std::int64_t required_bytes, Budget& budget) {
  bool ended = false;
  for (const Order order : {Order::kLengthClass, Order::kBytes}) {
    if (best_.height_bytes <= required_bytes || budget.spent()) break;
    Layout next = place_by_time(
        instance_, order == Order::kBytes ? by_bytes_ : greedy_order(instance_, order), budget);
    if (next.offsets.empty()) continue;
    ended = true;
    by_bytes_placed_ = by_bytes_placed_ || order == kOrders[0];
    take(std::move(next));
  }
  return ended;
}

void PartSearch::try_layers(std::int64_t required_bytes, Budget& budget) {
  for (const std::int64_t long_sections : kLongSections) {
    // If no item is this long, another length gives the same result.
    if (long_sections >= instance_.sections && long_sections != kLongSections[0]) return;
    Layout next = place_in_layers(instance_, long_sections, required_bytes, budget);
    if (!next.offsets.empty()) take(std::move(next));
    if (best_.height_bytes <= required_bytes || budget.spent()) return;
  }
}

bool PartSearch::try_exact(std::int64_t target_bytes, Budget& budget) {
  if (!restarts_) restarts_ = std::make_unique<Restarts>(instance_, lengths_of(instance_));
  const Outcome outcome = restarts_->run(target_bytes, budget);
  if (outcome == Outcome::kNone) refuted_bytes_ = std::max(refuted_bytes_, target_bytes);
  return outcome == Outcome::kFound && take(restarts_->layout());
}

bool PartSearch::try_core(double share, std::int64_t target_bytes, Budget& budget) {
  const Core core =
      core_of(instance_, static_cast<std::int64_t>(share * static_cast<double>(target_bytes)));
  if (core.bottom.size() + core.items.size() == instance_.items.size()) return false;
  std::vector<std::int64_t> start(instance_.items.size(), -1);
  std::int64_t bottom = 0;
  for (const std::uint32_t i : core.bottom) {
    start[i] = bottom;
    bottom += instance_.items[i].bytes;
  }
  const Parts parts = cut(core.lifetimes, core.cycle);
  for (std::size_t c = 0; c < core.items.size(); ++c) {
    if (parts.fixed_offsets[c] >= 0) start[core.items[c]] = bottom + parts.fixed_offsets[c];
  }
  for (std::size_t p = 0; p < parts.parts.size(); ++p) {
    const Part& part = parts.parts[p];
    std::vector<double> lengths;
    for (const std::uint32_t c : part.ids) {
      lengths.push_back(static_cast<double>(length_of(instance_.items[core.items[c]])));
    }
    const Layout packed = pack_core_part(part.instance, std::move(lengths),
                                         target_bytes - bottom - parts.base_bytes[p], budget);
    if (packed.offsets.empty()) return false;
    for (std::size_t i = 0; i < part.ids.size(); ++i) {
      start[core.items[part.ids[i]]] = bottom + parts.base_bytes[p] + packed.offsets[i];
    }
  }
  Layout filled = place_in_order(instance_, *neighbours_, by_bytes_, std::move(start), budget);
  if (filled.offsets.empty()) return false;
  const bool within = filled.height_bytes <= target_bytes;
  const bool better = take(filled);
  return within ? better : try_ejection(filled, target_bytes, budget);
}

bool PartSearch::try_ejection(const Layout& start, std::int64_t target_bytes, Budget& budget) {
  if (!ejection_) ejection_ = std::make_unique<EjectionSearch>(instance_, *neighbours_);
  return ejection_->run(start, target_bytes, budget) && take(ejection_->layout());
}

bool PartSearch::take(Layout layout) {
  if (layout.height_bytes >= best_.height_bytes) return false;
  best_ = std::move(layout);
  return true;
}

}  // namespace ho::packing
