#include "tools/baselines/link_time.hpp"

#include <algorithm>

#include "common/base/check.hpp"

namespace ho::analyzer {

LinkTime::LinkTime(const std::vector<std::int64_t>& free_ns)
    : slots_(static_cast<std::int64_t>(free_ns.size())), free_(free_ns) {
  HO_CHECK(slots_ > 0);
  free_.resize((free_.size() + kBlock - 1) / kBlock * kBlock, 0);
  const std::size_t blocks = free_.size() / kBlock;
  tree_.assign(blocks + 1, 0);
  for (std::size_t i = 1; i <= blocks; ++i) {
    const std::int64_t block = sum((i - 1) * kBlock, i * kBlock);
    total_ += block;
    tree_[i] += block;
    const std::size_t parent = i + (i & (~i + 1));
    if (parent <= blocks) tree_[parent] += tree_[i];
  }
}

std::int64_t LinkTime::sum(std::size_t first, std::size_t end) const {
  const auto at = [&](std::size_t i) { return free_.begin() + static_cast<std::ptrdiff_t>(i); };
  return std::accumulate(at(first), at(end), std::int64_t{0});
}

std::int64_t LinkTime::prefix(std::int64_t slot) const {
  const auto end = static_cast<std::size_t>(slot);
  std::int64_t out = sum(end / kBlock * kBlock, end);
  for (std::size_t i = end / kBlock; i > 0; i &= i - 1) out += tree_[i];
  return out;
}

/// Mostly within the lap, and a division takes as long as the rest.
std::int64_t LinkTime::to_lap(std::int64_t& slot) const {
  std::int64_t lap = 0;
  for (; slot < 0; slot += slots_) --lap;
  for (; slot >= slots_; slot -= slots_) ++lap;
  return lap;
}

std::int64_t LinkTime::cumulative(std::int64_t slot) const {
  const std::int64_t lap = to_lap(slot);
  return lap * total_ + prefix(slot);
}

std::int64_t LinkTime::free_between(std::int64_t first, std::int64_t last) const {
  if (first > last) return 0;
  HO_CHECK(last - first < slots_);
  std::int64_t end = last + 1;
  const std::int64_t laps = to_lap(end) - to_lap(first);
  const auto to = static_cast<std::size_t>(end);
  const auto from = static_cast<std::size_t>(first);
  auto i = to / kBlock;
  auto j = from / kBlock;
  if (laps == 0 && i == j) return sum(from, to);
  std::int64_t out = laps * total_ + sum(i * kBlock, to) - sum(j * kBlock, from);
  // Both prefixes have the same tail: nobody needs it.
  while (i != j) {
    if (i > j) {
      out += tree_[i];
      i &= i - 1;
    } else {
      out -= tree_[j];
      j &= j - 1;
    }
  }
  return out;
}

void LinkTime::change(std::int64_t slot, std::int64_t delta) {
  free_[static_cast<std::size_t>(slot)] += delta;
  total_ += delta;
  auto i = static_cast<std::size_t>(slot) / kBlock + 1;
  for (; i < tree_.size(); i += i & (~i + 1)) {
    tree_[i] += delta;
  }
}

/// The slot that holds the target-th free nanosecond (0-based) of the endless cyclic timeline.
std::int64_t LinkTime::locate(std::int64_t target) const {
  HO_CHECK(total_ > 0);
  const bool first_lap = target >= 0 && target < total_;
  std::int64_t lap = first_lap ? 0 : target / total_;
  std::int64_t rest = first_lap ? target : target % total_;
  if (rest < 0) {
    rest += total_;
    --lap;
  }
  std::size_t step = 1;
  while (step * 2 < tree_.size()) step *= 2;
  std::size_t at = 0;
  for (; step > 0; step /= 2) {
    if (at + step < tree_.size() && tree_[at + step] <= rest) {
      at += step;
      rest -= tree_[at];
    }
  }
  at *= kBlock;
  for (; free_[at] <= rest; ++at) rest -= free_[at];
  return lap * slots_ + static_cast<std::int64_t>(at);
}

LinkTime::Booking LinkTime::book(std::int64_t first, std::int64_t last, std::int64_t time_ns,
                                 Slots from) {
  HO_CHECK(time_ns > 0 && free_between(first, last) >= time_ns);
  Booking booking{last, first};
  while (time_ns > 0) {
    const std::int64_t slot =
        locate(from == Slots::kEarliest ? cumulative(first) : cumulative(last + 1) - 1);
    HO_CHECK(slot >= first && slot <= last);
    std::int64_t index = slot;
    to_lap(index);
    const std::int64_t taken = std::min(time_ns, free_[static_cast<std::size_t>(index)]);
    HO_CHECK(taken > 0);
    change(index, -taken);
    time_ns -= taken;
    booking.first_slot = std::min(booking.first_slot, slot);
    booking.last_slot = std::max(booking.last_slot, slot);
  }
  return booking;
}

}  // namespace ho::analyzer
