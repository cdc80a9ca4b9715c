#include "tools/analyzer/packing/exact.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/prng.hpp"

namespace ho::packing {
namespace {

constexpr std::size_t kFailedSlotsMin = std::size_t{1} << 8;
constexpr std::size_t kFailedSlotsMax = std::size_t{1}
                                        << 21;  // 16 MiB. Only a cache: proofs do not depend on it
constexpr std::int64_t kUnitsMax = std::int64_t{1} << 30;

std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 32U)) * 0xd6e8feb86659fd93U;
  z = (z ^ (z >> 32U)) * 0xd6e8feb86659fd93U;
  return z ^ (z >> 32U);
}

}  // namespace

ExactSearch::ExactSearch(const Instance& instance)
    : instance_(instance), words_((instance.items.size() + 63) / 64) {
  const std::size_t n = instance.items.size();
  HO_CHECK(n > 0 && n <= kItemsMax);
  meets_.assign(n * words_, 0);
  for (std::size_t a = 0; a < n; ++a) {
    for (std::size_t b = 0; b < n; ++b) {
      if (a == b || !meet(instance.items[a], instance.items[b])) continue;
      meets_[a * words_ + b / 64] |= std::uint64_t{1} << (b % 64);
    }
  }
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, std::uint32_t> lifetimes;
  Prng prng(n);
  for (const Item& item : instance.items) {
    const auto [at, added] = lifetimes.try_emplace(
        {item.first.begin, item.first.end, item.second.end}, std::uint32_t(lifetimes.size()));
    lifetime_.push_back(at->second);
    salt_.push_back(prng.next());
  }
  size_.resize(n);
  rank_.resize(n);
  twin_.resize(n);
  real_.resize(n);
  barred_.resize(n);
  placed_.resize(n);
  offsets_.resize(n);
  remaining_.resize(instance.sections);
  stack_.resize(instance.sections);
  crossing_.resize(instance.sections + 1);
  group_.resize(instance.sections);
  frames_.resize(2 * n + 4);
}

void ExactSearch::set_capacity(std::int64_t capacity_bytes) {
  HO_CHECK(capacity_bytes > 0);
  if (capacity_bytes == capacity_bytes_) return;
  capacity_bytes_ = capacity_bytes;
  std::int64_t divisor = 0;
  for (const Item& item : instance_.items) divisor = std::gcd(divisor, item.bytes);
  HO_CHECK(divisor > 0);
  // A multiple of what divides all sizes: offsets keep the alignment of the sizes.
  unit_ = divisor * (capacity_bytes / divisor / kUnitsMax + 1);
  capacity_ = static_cast<std::int32_t>(capacity_bytes / unit_);
  for (std::size_t i = 0; i < size_.size(); ++i) {
    const std::int64_t units = (instance_.items[i].bytes + unit_ - 1) / unit_;
    size_[i] = static_cast<std::int32_t>(std::min<std::int64_t>(units, kUnitsMax + 1));
  }
  neighbours_.clear();
  neighbours_begin_.assign(1, 0);
  for (std::uint32_t i = 0; i < size_.size(); ++i) {
    for (std::uint32_t j = 0; j < size_.size(); ++j) {
      if (adjacent(i, j)) neighbours_.push_back(j);
    }
    std::stable_sort(neighbours_.begin() + neighbours_begin_.back(), neighbours_.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return size_[a] < size_[b]; });
    neighbours_begin_.push_back(static_cast<std::uint32_t>(neighbours_.size()));
  }
  failed_.assign(kFailedSlotsMin, 0);
  failures_ = 0;
}

Outcome ExactSearch::run(const std::vector<std::uint32_t>& order, Prefer prefer,
                         std::uint64_t nodes_max) {
  const std::size_t n = size_.size();
  HO_CHECK(order.size() == n && capacity_bytes_ > 0);
  if (std::any_of(size_.begin(), size_.end(), [&](std::int32_t s) { return s > capacity_; })) {
    return Outcome::kNone;
  }
  prefer_ = prefer;
  nodes_ = 0;
  nodes_max_ = nodes_max;
  std::map<std::pair<std::uint32_t, std::int32_t>, std::uint32_t> equal;
  for (std::uint32_t r = 0; r < n; ++r) {
    const std::uint32_t i = order[r];
    rank_[i] = r;
    const auto [at, added] = equal.try_emplace({lifetime_[i], size_[i]}, i);
    twin_[i] = at->second;
    at->second = i;
  }
  std::fill(real_.begin(), real_.end(), 0);
  std::fill(barred_.begin(), barred_.end(), std::uint8_t{0});
  std::fill(placed_.begin(), placed_.end(), std::uint8_t{0});
  std::fill(remaining_.begin(), remaining_.end(), 0);
  for (std::uint32_t i = 0; i < n; ++i) add_remaining(i, size_[i]);
  changes_.clear();
  placed_order_.clear();
  frame(0).items.clear();
  for (const std::uint32_t i : order) frame(0).items.push_back({i, 0});
  const Outcome outcome = descend(0, 0);
  if (outcome == Outcome::kFound) {
    for (std::size_t i = 0; i < n; ++i) offsets_[i] = std::int64_t{real_[i]} * unit_;
  }
  return outcome;
}

Outcome ExactSearch::descend(std::size_t depth, std::int32_t last) {
  Frame& here = frame(depth);
  const std::vector<Entry>& items = here.items;
  if (items.empty()) return Outcome::kFound;
  if (++nodes_ > nodes_max_) return Outcome::kStopped;
  if (!bound(here, last)) return Outcome::kNone;
  if (!stacks_fit(items)) return Outcome::kNone;
  if (find_groups(items) > 1) return descend_split(depth, last);
  const std::uint64_t key = key_of(items, last);
  if (failed_[key / 2 % failed_.size()] == key) return Outcome::kNone;
  return branch(depth, last, key);
}

Outcome ExactSearch::branch(std::size_t depth, std::int32_t last, std::uint64_t key) {
  Frame& here = frame(depth);
  list_candidates(here);
  const std::size_t changes = changes_.size();
  const std::size_t placed = placed_order_.size();
  for (const std::uint32_t item : here.candidates) {
    HO_CHECK(real_[item] >= last);
    std::vector<Entry>& rest = frame(depth + 1).items;
    rest.clear();
    for (const Entry& other : here.items) {
      if (other.item != item) rest.push_back(other);
    }
    place(item, rest);
    const Outcome outcome = descend(depth + 1, real_[item]);
    if (outcome == Outcome::kFound) return outcome;
    undo_to(changes, placed);
    if (outcome == Outcome::kStopped) return outcome;
  }
  remember_failed(key);
  return Outcome::kNone;
}

/// The set grows with its contents: most searches are short, and clearing a large set is slow.
void ExactSearch::remember_failed(std::uint64_t key) {
  if (++failures_ > failed_.size() / 4 && failed_.size() < kFailedSlotsMax) {
    std::vector<std::uint64_t> larger(4 * failed_.size());
    for (const std::uint64_t old : failed_) {
      if (old != 0) larger[old / 2 % larger.size()] = old;
    }
    failed_ = std::move(larger);
  }
  failed_[key / 2 % failed_.size()] = key;
}

/// The groups no longer share a section. Searches the smallest first, since it is the cheapest to
/// refute.
Outcome ExactSearch::descend_split(std::size_t depth, std::int32_t last) {
  std::map<std::uint32_t, std::vector<Entry>> groups;
  for (const Entry& entry : frame(depth).items) {
    groups[group_[instance_.items[entry.item].first.begin]].push_back(entry);
  }
  std::vector<std::vector<Entry>> sorted;
  sorted.reserve(groups.size());
  for (auto& [id, items] : groups) sorted.push_back(std::move(items));
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.size() < b.size(); });
  for (auto& items : sorted) {
    frame(depth + 1).items = std::move(items);
    const Outcome outcome = descend(depth + 1, last);
    if (outcome != Outcome::kFound) return outcome;  // the caller removes the placed items
  }
  return Outcome::kFound;
}

/// Computes the lowest possible offset of each item and sorts by it. @return false if an item has
/// none.
bool ExactSearch::bound(Frame& here, std::int32_t last) {
  raised_.clear();
  std::size_t kept = 0;
  for (const Entry& entry : here.items) {
    const std::uint32_t i = entry.item;
    std::int32_t least = std::max(real_[i], last);
    if (barred_[i] != 0) {
      const std::int32_t lowest_top = lowest_top_beneath(i, last);
      if (lowest_top > capacity_ - size_[i]) return false;
      least = std::max(least, lowest_top);
    }
    // Lower bounds only rise from parent to child. Items whose bound did not rise keep their order.
    if (least > std::max(entry.least, last)) {
      raised_.push_back({i, least});
    } else {
      here.items[kept++] = {i, least};
    }
  }
  std::sort(raised_.begin(), raised_.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.least, a.item) < std::pair(b.least, b.item);
  });
  // Merges from the back, in place.
  std::size_t to = here.items.size();
  std::size_t from = raised_.size();
  while (from > 0) {
    const bool take = kept == 0 || here.items[kept - 1].least <= raised_[from - 1].least;
    here.items[--to] = take ? raised_[--from] : here.items[--kept];
  }
  return true;
}

/// The lowest offset to which an unplaced item could raise `item`.
std::int32_t ExactSearch::lowest_top_beneath(std::uint32_t item, std::int32_t last) const {
  std::int32_t lowest = std::numeric_limits<std::int32_t>::max();
  for (std::uint32_t a = neighbours_begin_[item]; a < neighbours_begin_[item + 1]; ++a) {
    const std::uint32_t j = neighbours_[a];
    if (last + size_[j] >= lowest) break;  // sorted by size: later items are not better
    if (placed_[j] == 0) lowest = std::min(lowest, std::max(real_[j], last) + size_[j]);
  }
  return lowest;
}

/// For each section: stacks all items from their lowest offsets upwards, and checks the capacity.
bool ExactSearch::stacks_fit(const std::vector<Entry>& items) {
  std::fill(stack_.begin(), stack_.end(), 0);
  std::int32_t* const stack = stack_.data();
  for (const Entry& entry : items) {
    const Item& item = instance_.items[entry.item];
    const std::int32_t size = size_[entry.item];
    const std::int32_t low = entry.least;
    const auto raise = [stack, low, size](std::uint32_t begin, std::uint32_t end) {
      std::int32_t highest = 0;
      for (std::uint32_t k = begin; k < end; ++k) {
        const std::int32_t top = (stack[k] < low ? low : stack[k]) + size;
        stack[k] = top;
        highest = highest < top ? top : highest;
      }
      return highest;
    };
    if (raise(item.first.begin, item.first.end) > capacity_) return false;
    if (raise(0, item.second.end) > capacity_) return false;
  }
  return true;
}

/// Numbers the sections by groups of items that share sections, directly or through others.
std::size_t ExactSearch::find_groups(const std::vector<Entry>& items) {
  std::fill(crossing_.begin(), crossing_.end(), 0);
  std::uint32_t wraps = 0;
  for (const auto& [i, least] : items) {
    const Item& item = instance_.items[i];
    ++crossing_[item.first.begin];
    --crossing_[item.first.end - 1];
    if (!item.wrapped()) continue;
    wraps = 1;
    ++crossing_[0];
    --crossing_[item.second.end - 1];
  }
  // crossing_[k]: number of items alive in both k and k + 1.
  std::uint32_t id = 0;
  std::int32_t alive = 0;
  for (std::uint32_t k = 0; k < instance_.sections; ++k) {
    group_[k] = id;
    alive += crossing_[k];
    if (alive == 0) ++id;
  }
  if (wraps != 0 && id > 1) {
    const std::uint32_t end = group_[instance_.sections - 1];
    for (auto& g : group_) g = g == end ? 0 : g;
  }
  group_here_ = group_[instance_.items[items.front().item].first.begin];
  const bool one = std::all_of(items.begin(), items.end(), [&](const Entry& e) {
    return group_[instance_.items[e.item].first.begin] == group_here_;
  });
  return one ? 1 : 2;
}

std::uint64_t ExactSearch::key_of(const std::vector<Entry>& items, std::int32_t last) const {
  std::uint64_t key = 0;
  bool any_barred = false;
  for (const auto& [i, least] : items) {
    any_barred |= barred_[i] != 0;
    key += mix(salt_[i] + 2 * static_cast<std::uint64_t>(real_[i]) + barred_[i]);
  }
  // If no item is barred, every offset is at or above the last one, so the last one adds nothing.
  if (any_barred) key += mix(static_cast<std::uint64_t>(last) + 1);
  return key | 1U;  // 0 marks an empty slot
}

/// After find_groups(): all items of the frame are in one group.
void ExactSearch::list_candidates(Frame& frame) {
  std::int32_t highest = std::numeric_limits<std::int32_t>::max();
  std::int32_t fullest = 0;
  for (const auto& [i, least] : frame.items) highest = std::min(highest, real_[i] + size_[i] - 1);
  for (std::uint32_t k = 0; k < instance_.sections; ++k) {
    if (group_[k] == group_here_) fullest = std::max(fullest, remaining_[k]);
  }
  highest = std::min(highest, capacity_ - fullest);
  frame.candidates.clear();
  for (const auto& [i, least] : frame.items) {
    if (barred_[i] != 0 || real_[i] > highest) continue;
    if (twin_[i] != i && placed_[twin_[i]] == 0) continue;
    frame.candidates.push_back(i);
  }
  std::sort(frame.candidates.begin(), frame.candidates.end(),
            [&](std::uint32_t a, std::uint32_t b) {
              if (prefer_ == Prefer::kLowest && real_[a] != real_[b]) return real_[a] < real_[b];
              return rank_[a] < rank_[b];
            });
}

void ExactSearch::place(std::uint32_t item, const std::vector<Entry>& others) {
  const std::int32_t low = real_[item];
  const std::int32_t top = low + size_[item];
  placed_[item] = 1;
  placed_order_.push_back(item);
  add_remaining(item, -size_[item]);
  for (const auto& [j, least] : others) {
    const std::int32_t real = real_[j];
    const bool barred = barred_[j] != 0;
    if (adjacent(item, j)) {
      if (real >= top) continue;
      changes_.push_back({j, real, barred});
      real_[j] = top;
      // Swapping the two would give a smaller sum of offsets.
      barred_[j] = lifetime_[j] == lifetime_[item] && size_[j] < size_[item] ? 1 : 0;
    } else if (!barred && (real < low || (real == low && rank_[j] < rank_[item]))) {
      changes_.push_back({j, real, barred});
      barred_[j] = 1;
    }
  }
}

void ExactSearch::undo_to(std::size_t changes, std::size_t placed) {
  while (placed_order_.size() > placed) {
    const std::uint32_t item = placed_order_.back();
    placed_order_.pop_back();
    placed_[item] = 0;
    add_remaining(item, size_[item]);
  }
  while (changes_.size() > changes) {
    const Change change = changes_.back();
    changes_.pop_back();
    real_[change.item] = change.real;
    barred_[change.item] = change.barred ? 1 : 0;
  }
}

void ExactSearch::add_remaining(std::uint32_t item, std::int32_t bytes) {
  const Item& it = instance_.items[item];
  for (std::uint32_t k = it.first.begin; k < it.first.end; ++k) remaining_[k] += bytes;
  for (std::uint32_t k = 0; k < it.second.end; ++k) remaining_[k] += bytes;
}

ExactSearch::Frame& ExactSearch::frame(std::size_t depth) {
  HO_CHECK(depth < frames_.size());
  return frames_[depth];
}

}  // namespace ho::packing
