#include "tools/analyzer/sweep/choose.hpp"
#include "common/model/links.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/base/check.hpp"
#include "tools/analyzer/sweep/chooser.hpp"

namespace ho::analyzer {
namespace {

std::vector<std::int64_t> slots_of(const std::vector<std::int64_t>& durations,
                                   const std::vector<std::int64_t>* stalls) {
  std::vector<std::int64_t> slots(durations.size() * 2, 0);
  for (std::size_t p = 0; p < durations.size(); ++p) {
    if (stalls != nullptr) slots[2 * p] = (*stalls)[p];
    slots[2 * p + 1] = durations[p];
  }
  // A timeline without any time has no slots to find; one nanosecond is harmless.
  if (std::accumulate(slots.begin(), slots.end(), std::int64_t{0}) == 0) slots.back() = 1;
  return slots;
}

std::vector<std::int64_t> slack_of(const Lifetimes& lifetimes, std::uint64_t target) {
  std::vector<std::int64_t> slack(lifetimes.positions);
  for (std::size_t p = 0; p < slack.size(); ++p) {
    slack[p] = static_cast<std::int64_t>(std::max(target, lifetimes.working_set[p])) -
               static_cast<std::int64_t>(lifetimes.live[p]);
  }
  return slack;
}

}  // namespace

std::int64_t store_ns(const ChooseInput& input, std::uint32_t storage) {
  const std::size_t tier = input.tier_of[storage];
  const auto once = transfer_ns(input.tiers[tier].write, input.lifetimes.bytes[storage]);
  const bool twice = input.lifetimes.copies[storage] > 1 && tier + 1 == input.tiers.size();
  return twice ? 2 * once : once;
}

Chooser::Chooser(const ChooseInput& input, const ChooseOptions& options)
    : in_(input),
      options_(options),
      n_(input.lifetimes.positions),
      slack_(slack_of(input.lifetimes, options.target_bytes)),
      clock_(slots_of(input.duration_ns, options.stall_ns)) {
  move_ns_.resize(in_.lifetimes.bytes.size());
  for (std::size_t s = 0; s < move_ns_.size() && !in_.tiers.empty(); ++s) {
    const PlanTier& tier = in_.tiers[in_.tier_of[s]];
    move_ns_[s] = {transfer_ns(tier.read, in_.lifetimes.bytes[s]),
                   store_ns(in_, static_cast<std::uint32_t>(s))};
  }
  const std::size_t gaps = in_.lifetimes.gaps.size();
  out_.moved.assign(gaps, 0);
  out_.detach_by.assign(gaps, 0);
  out_.fetch_from.assign(gaps, 0);
  out_.store_after.assign(in_.lifetimes.versions, kNoStore);
  out_.store_slot.assign(in_.lifetimes.versions, 0);
  out_.stall_ns.assign(in_.lifetimes.positions, 0);
  if (options.stall_ns != nullptr) out_.stall_ns = *options.stall_ns;
  stored_by_.assign(in_.lifetimes.versions, 0);
  home_from_.assign(in_.lifetimes.bytes.size(), 0);
  home_to_.assign(in_.lifetimes.bytes.size(), -1);
  opens_ = Chains(in_.lifetimes.positions, gaps);
  comes_back_ = Chains(in_.lifetimes.positions, gaps);
  const auto slots = slots_of(in_.duration_ns, options.stall_ns);
  for (std::size_t t = 0; t < in_.tiers.size(); ++t) {
    read_.emplace_back(slots);
    write_.emplace_back(slots);
    const auto room = static_cast<std::int64_t>(in_.tiers[t].capacity_bytes) -
                      static_cast<std::int64_t>(in_.static_home_bytes[t]);
    home_.emplace_back(std::vector<std::int64_t>(in_.lifetimes.positions, room));
  }
}

void Chooser::add_cyclic(std::int64_t first, std::int64_t last, std::int64_t delta) {
  if (first > last) return;
  HO_CHECK(last - first < n_);
  const std::int64_t lap = first >= 0 ? first / n_ : -((-first + n_ - 1) / n_);
  first -= lap * n_;
  last -= lap * n_;
  slack_.add(first, std::min(last, n_ - 1), delta);
  if (last >= n_) slack_.add(0, last - n_, delta);
}

std::int64_t Chooser::min_cyclic(std::int64_t first, std::int64_t last) const {
  if (first > last) return std::numeric_limits<std::int64_t>::max();
  const std::int64_t lap = first >= 0 ? first / n_ : -((-first + n_ - 1) / n_);
  first -= lap * n_;
  last -= lap * n_;
  std::int64_t result = slack_.min(first, std::min(last, n_ - 1));
  if (last >= n_) result = std::min(result, slack_.min(0, last - n_));
  return result;
}

void Chooser::add_relief(std::uint32_t index, std::int64_t sign) {
  const Gap& g = gap(index);
  // An INPUT is not live before its fetch.
  const std::int64_t first = g.mandatory ? 0 : out_.detach_by[index] + 1;
  add_cyclic(first, out_.fetch_from[index] - 1, sign * bytes(g));
}

void Chooser::extend(std::int64_t slot, std::int64_t time_ns) {
  if (time_ns <= 0) return;
  for (auto& channel : read_) channel.extend(slot, time_ns);
  for (auto& channel : write_) channel.extend(slot, time_ns);
  clock_.extend(slot, time_ns);
  const std::int64_t position = ((slot / 2) % n_ + n_) % n_;
  out_.stall_ns[static_cast<std::size_t>(position)] += time_ns;
}

/// Sorts the gaps by where they open; moves those that leave at any budget.
void Chooser::start() {
  for (std::uint32_t i = 0; i < in_.lifetimes.gaps.size(); ++i) {
    const Gap& g = gap(i);
    if (!g.movable) continue;
    if (g.mandatory) {
      const std::int64_t need = read_ns(g);
      const std::int64_t last_slot = 2 * g.to;
      const auto lane = in_.tier_of[g.storage];
      extend(last_slot, need - read_[lane].free_between(0, last_slot));
      const auto booked = read_[lane].book_late(0, last_slot, need);
      out_.moved[i] = 1;
      out_.detach_by[i] = -1;
      out_.fetch_from[i] = std::min(g.to, booked.first_slot / 2);
      add_relief(i, 1);
      if (out_.fetch_from[i] < g.to) {
        comes_back_.add(static_cast<std::size_t>(out_.fetch_from[i]), i);
      }
    } else if (g.dead && !g.wraps) {
      out_.moved[i] = 1;
      out_.detach_by[i] = g.from;
      out_.fetch_from[i] = g.to;
      add_relief(i, 1);
    } else if (!in_.tiers.empty()) {
      if (g.from + 1 < n_) opens_.add(static_cast<std::size_t>(g.from + 1), i);
      if (g.wraps && g.to - n_ > 0) {
        Candidates& candidates =
            in_.lifetimes.bytes[g.storage] < options_.small_bytes ? small_ : large_;
        candidates.add({g.to - n_, i});
      }
    }
  }
}

void Chooser::open(std::int64_t p) {
  opens_.for_each(static_cast<std::size_t>(p), [&](std::uint32_t i) {
    const Gap& g = gap(i);
    if (out_.moved[i]) {
      if (out_.detach_by[i] >= p) leaving_.emplace(g.to, i);
      return;
    }
    Candidates& candidates =
        in_.lifetimes.bytes[g.storage] < options_.small_bytes ? small_ : large_;
    candidates.add({g.to, i});
  });
  comes_back_.for_each(static_cast<std::size_t>(p), [&](std::uint32_t i) {
    const Gap& g = gap(i);
    const std::int64_t next = g.to >= n_ && out_.fetch_from[i] >= n_ ? g.to - n_ : g.to;
    fetching_.emplace(next, i);
  });
}

/// The half of an estimate for its write-back.
Estimate Chooser::estimate_store(std::uint32_t index, std::int64_t p) const {
  const Gap& g = gap(index);
  Estimate cost;
  if (g.version == kHomeVersion) return cost;
  const std::int64_t at = in_frame(g, p);
  const auto lane = in_.tier_of[g.storage];
  if (out_.store_after[g.version] == kNoStore) {
    cost.store_ns = write_ns(g);
    const std::int64_t first = std::max(2 * (g.written + 1), 2 * at + 1 - 2 * n_);
    cost.store_late_ns =
        std::max<std::int64_t>(0, cost.store_ns - write_[lane].free_between(first, 2 * at));
  } else if (stored_by_[g.version] - (g.written < 0 ? n_ : 0) >= at) {
    cost.store_late_ns = write_ns(g);
  }
  return cost;
}

void Chooser::estimate_fetch(std::uint32_t index, std::int64_t p, Estimate& cost) const {
  const Gap& g = gap(index);
  if (g.dead) return;
  const std::int64_t at = in_frame(g, p);
  cost.fetch_ns = read_ns(g);
  cost.fetch_window = fetch_window(g, at, cost.fetch_ns);
  cost.fetch_late_ns = std::max<std::int64_t>(
      0, cost.fetch_ns - read_[in_.tier_of[g.storage]].free_between(cost.fetch_window, 2 * g.to));
}

/// First slot in which the fetch of a gap moved at `at` may begin.
std::int64_t Chooser::fetch_window(const Gap& g, std::int64_t at, std::int64_t fetch_ns) const {
  const std::int64_t first = 2 * (at + 1);
  if (options_.hold == 0) return first;
  return std::clamp(clock_.slot_before(2 * g.to, options_.hold * fetch_ns), first, 2 * g.to);
}

bool Chooser::home_has_room(std::uint32_t index) const {
  const Gap& g = gap(index);
  if (in_.home_is_static[g.storage]) return true;
  const std::int64_t size = bytes(g);
  const auto& home = home_[in_.tier_of[g.storage]];
  // Looks at the whole first, which mostly has room: every candidate of every choice passes here.
  if (home.min(0, n_ - 1) >= size) return true;
  const std::int64_t first = std::max<std::int64_t>(0, g.written + 1);
  if (home_to_[g.storage] < 0) return home.min(first, g.to) >= size;
  return home.min(first, std::max(first, home_from_[g.storage]) - 1) >= size &&
         home.min(home_to_[g.storage] + 1, g.to) >= size;
}

void Chooser::claim_home(const Gap& g) {
  if (in_.home_is_static[g.storage] || g.version == kHomeVersion) return;
  auto& home = home_[in_.tier_of[g.storage]];
  std::int64_t& from = home_from_[g.storage];
  std::int64_t& to = home_to_[g.storage];
  const std::int64_t first = out_.store_after[g.version] + 1;
  if (to < 0) {
    from = first;
    to = first - 1;
  }
  if (first < from) {
    home.add(first, from - 1, -bytes(g));
    from = first;
  }
  if (g.to > to) {
    home.add(to + 1, g.to, -bytes(g));
    to = g.to;
  }
}

/// Books the write-back of a gap's version so that it ends before position `at` begins.
void Chooser::book_store(std::uint32_t index, std::int64_t at, std::int64_t store_ns) {
  const Gap& g = gap(index);
  const std::int64_t lap = g.written < 0 ? n_ : 0;
  const std::int64_t first = std::max(2 * (g.written + 1), 2 * at + 1 - 2 * n_);
  const auto booked = write_[in_.tier_of[g.storage]].book_early(first, 2 * at, store_ns);
  out_.store_after[g.version] = booked.first_slot / 2 - 1 + lap;
  if (booked.first_slot < 0) {
    out_.store_after[g.version] = (booked.first_slot - 1) / 2 - 1 + lap;
  }
  out_.store_slot[g.version] = booked.first_slot + 2 * lap;
  // Slot 2q + 1 ends within op q; slot 2q before it, so q - 1 is the last position held.
  const std::int64_t last = booked.last_slot + 2 * lap;
  stored_by_[g.version] = last % 2 == 0 ? last / 2 - 1 : last / 2;
}

/// A Store must be able to begin before any op that waits for its Detach: by the end of `held`.
void Chooser::store_by(const Gap& g, std::int64_t held) {
  if (g.version == kHomeVersion) return;
  const std::int64_t lap = g.written < 0 ? n_ : 0;
  std::int64_t& after = out_.store_after[g.version];
  after = std::min(after, held + lap);
}

void Chooser::move(std::uint32_t index, std::int64_t p, const Estimate& cost) {
  const Gap& g = gap(index);
  const std::int64_t at = in_frame(g, p);
  const auto lane = in_.tier_of[g.storage];
  std::int64_t held = g.from;
  if (g.version != kHomeVersion) {
    if (cost.store_ns > 0) {
      extend(2 * at, cost.store_late_ns);
      book_store(index, at, cost.store_ns);
    }
    const std::int64_t lap = g.written < 0 ? n_ : 0;
    held = std::max(held, std::min(stored_by_[g.version] - lap, at - 1));
    store_by(g, held);
  }
  std::int64_t back = g.to;
  if (cost.fetch_ns > 0) {
    extend(2 * g.to, cost.fetch_late_ns);
    const auto booked = read_[lane].book_late(cost.fetch_window, 2 * g.to, cost.fetch_ns);
    back = std::clamp(booked.first_slot / 2, at + 1, g.to);
  }
  out_.moved[index] = 1;
  out_.detach_by[index] = held;
  out_.fetch_from[index] = back;
  claim_home(g);
  add_relief(index, 1);
  if (back < g.to) {
    const std::int64_t seen = back >= n_ ? back - n_ : back;
    if (seen > p) {
      comes_back_.add(static_cast<std::size_t>(seen), index);
    }
  }
}

/// Looks through the candidates that span `p`, the furthest next use first.
Found Chooser::look(std::int64_t p, Candidates& candidates) {
  Found found;
  double best_price = 0;
  const std::int64_t excess = -slack_.min(p, p);
  const auto moved = [&](std::uint32_t index) { return out_.moved[index] != 0; };
  candidates.scan(p, options_.examine, moved, [&](const Candidate& candidate) {
    const std::uint32_t index = candidate.second;
    if (!home_has_room(index)) {
      home_full_ = true;
      return true;
    }
    const auto relief = static_cast<double>(std::min(bytes(gap(index)), excess));
    const auto dearer = [&](const Estimate& cost) {
      if (cost.late_ns() == 0 || !found.late) return false;
      return options_.furthest || static_cast<double>(cost.late_ns()) / relief >= best_price;
    };
    Estimate cost = estimate_store(index, p);
    if (dearer(cost)) return true;
    estimate_fetch(index, p, cost);
    if (cost.late_ns() == 0) {
      found.free = {index, cost};
      return false;
    }
    if (dearer(cost)) return true;
    found.late = {index, cost};
    best_price = static_cast<double>(cost.late_ns()) / relief;
    return true;
  });
  return found;
}

/// Delays a fetch that would already hold memory at `p`: the op that needs it waits.
bool Chooser::delay(std::int64_t p) {
  while (!fetching_.empty()) {
    const auto [next, index] = fetching_.top();
    if (next <= p) return false;
    fetching_.pop();
    const Gap& g = gap(index);
    const std::int64_t lap = g.to - next;
    if (out_.fetch_from[index] > p + lap) continue;
    const std::int64_t need = read_ns(g);
    auto& channel = read_[in_.tier_of[g.storage]];
    const std::int64_t free = channel.free_between(2 * (p + lap + 1), 2 * g.to);
    extend(2 * g.to, std::max<std::int64_t>(0, need - free));
    const auto booked = channel.book_late(2 * (p + lap + 1), 2 * g.to, need);
    add_relief(index, -1);
    out_.fetch_from[index] = std::clamp(booked.first_slot / 2, p + lap + 1, g.to);
    add_relief(index, 1);
    const std::int64_t seen = out_.fetch_from[index] - lap;
    if (seen < next && seen < n_) comes_back_.add(static_cast<std::size_t>(seen), index);
    return true;
  }
  return false;
}

/// Makes position `p` wait for a write-back that would still hold memory there.
bool Chooser::hasten(std::int64_t p) {
  while (!leaving_.empty()) {
    const std::uint32_t index = leaving_.top().second;
    leaving_.pop();
    if (out_.detach_by[index] < p) continue;
    add_relief(index, -1);
    out_.detach_by[index] = p - 1;
    store_by(gap(index), p - 1);
    add_relief(index, 1);
    return true;
  }
  return false;
}

void Chooser::fail(std::int64_t p) {
  const auto position = static_cast<std::uint32_t>(p);
  const auto excess = static_cast<std::uint64_t>(-slack_.min(p, p));
  Choice::Failure failure{position, std::nullopt, 0};
  if (home_full_) {
    failure.tier = in_.tiers.back().tier;
    failure.needs_bytes = in_.tiers.back().capacity_bytes + excess;
  } else {
    // If no value can move, the fullest position decides, not the first one that is too full.
    for (std::int64_t q = in_.tiers.empty() ? 0 : p; q <= (in_.tiers.empty() ? n_ - 1 : p); ++q) {
      const auto i = static_cast<std::size_t>(q);
      const std::uint64_t limit = std::max(options_.target_bytes, in_.lifetimes.working_set[i]);
      const std::uint64_t needs = limit - static_cast<std::uint64_t>(slack_.min(q, q));
      if (static_cast<std::int64_t>(needs - failure.needs_bytes) <= 0) continue;
      failure.needs_bytes = needs;
      failure.position = static_cast<std::uint32_t>(q);
    }
  }
  out_.failure = failure;
}

void Chooser::relieve(std::int64_t p) {
  while (slack_.min(p, p) < 0) {
    Found found = look(p, large_);
    if (!found.free) {
      Found small = look(p, small_);
      found.free = small.free;
      if (!found.late) found.late = small.late;
    }
    if (found.free || found.late) {
      const Pick& pick = found.free ? *found.free : *found.late;
      move(pick.gap, p, pick.cost);
      continue;
    }
    if (delay(p) || hasten(p)) continue;
    fail(p);
    return;
  }
}

Choice Chooser::run() {
  start();
  for (std::int64_t p = 0; p < n_ && !out_.failure; ++p) {
    open(p);
    relieve(p);
  }
  if (out_.failure) return std::move(out_);
  take_back();
  pull_forward();
  out_.stored_by = std::move(stored_by_);
  return std::move(out_);
}

Choice choose(const ChooseInput& input, const ChooseOptions& options) {
  return Chooser(input, options).run();
}

}  // namespace ho::analyzer
