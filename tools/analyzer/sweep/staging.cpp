#include "tools/analyzer/sweep/staging.hpp"

#include <algorithm>
#include <utility>

#include "common/base/check.hpp"

namespace ho::analyzer {
namespace {

constexpr std::uint32_t kNone = Staging::kNone;

/// One transfer between device and local DDR: the positions during which it needs the slot.
struct Event {
  std::int64_t begin = 0;       ///< in [0, N)
  std::int64_t order = 0;       ///< by which transfers of one storage follow each other
  std::int64_t end = 0;         ///< may lie in the next step
  std::uint32_t version = 0;    ///< that it writes or reads
  std::uint32_t fetch = kNone;  ///< the gap whose Prefetch it is; kNone: a Store
  std::uint32_t cut = kNone;    ///< the gap of the slot that follows, in Stager::slots_life_
};

class Stager {
 public:
  Stager(const Graph& graph, const ChooseInput& input, const Choice& choice, const PlanTier& flash)
      : graph_(graph), in_(input), life_(input.lifetimes), choice_(choice), flash_{flash} {
    n_ = life_.positions;
  }
  Staging run(const ChooseOptions& options);

 private:
  void collect_events(std::uint32_t storage);
  void collect_gaps(std::uint32_t storage);
  [[nodiscard]] bool transits(std::uint32_t storage) const;
  void sum_profiles();
  void cut_slots(std::uint32_t storage, const Choice& below);
  void close_slot(std::uint32_t storage, std::size_t first, std::size_t count,
                  std::uint32_t arrives, std::uint32_t leaves, const Choice& below);
  [[nodiscard]] bool uses_ddr(std::uint32_t s) const {
    return in_.tier_of[s] == 0 && (graph_.storages[s].persistent || !in_.home_is_static[s]);
  }

  const Graph& graph_;
  const ChooseInput& in_;
  const Lifetimes& life_;
  const Choice& choice_;
  const std::vector<PlanTier> flash_;
  std::int64_t n_ = 0;
  Lifetimes slots_life_;
  std::vector<std::vector<Event>> events_;  // per storage, by begin
  std::vector<std::uint8_t> stored_;        // per version: its Store is among the events
  std::vector<std::int64_t> written_;       // per version: end of its Store
  std::uint64_t always_bytes_ = 0;          // of local DDR: slots of INPUTs
  Staging out_;
};

void Stager::collect_events(std::uint32_t storage) {
  auto& events = events_[storage];
  for (std::uint32_t g = life_.gap_begin[storage]; g < life_.gap_begin[storage + 1]; ++g) {
    const Gap& gap = life_.gaps[g];
    if (!choice_.moved[g]) continue;
    if (gap.version != kHomeVersion && choice_.store_after[gap.version] != kNoStore) {
      const bool known = std::exchange(stored_[gap.version], 1) != 0;
      // After the last op: a Prefetch for that op comes before.
      const std::int64_t order = choice_.store_after[gap.version] + 1;
      const std::int64_t begin = std::min(order, n_ - 1);
      const std::int64_t end = std::clamp(choice_.stored_by[gap.version], begin, n_ - 1);
      if (!known) events.push_back({begin, order, end, gap.version, kNone, kNone});
    }
    if (gap.dead) continue;
    const std::int64_t begin = choice_.fetch_from[g] % n_;
    const std::int64_t end = begin + gap.to - choice_.fetch_from[g];
    events.push_back({begin, begin, end, gap.version, g, kNone});
  }
  std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return std::pair(a.order, a.fetch != kNone) < std::pair(b.order, b.fetch != kNone);
  });
  for (std::size_t i = 0; i + 1 < events.size(); ++i) {
    // A write-back ends before the value returns, even if the plan had it later.
    events[i].end = std::max(events[i].begin, std::min(events[i].end, events[i + 1].begin - 1));
  }
  for (const Event& event : events) {
    if (event.fetch == kNone) written_[event.version] = event.end;
  }
}

/// Time between a transfer and the next Prefetch of the same value: it can be spent on flash.
void Stager::collect_gaps(std::uint32_t storage) {
  auto& events = events_[storage];
  for (std::size_t i = 0; i < events.size(); ++i) {
    const bool wraps = i + 1 == events.size();
    if (wraps && !graph_.storages[storage].persistent) break;
    Event& here = events[i];
    const Event& there = wraps ? events.front() : events[i + 1];
    if (there.fetch == kNone || there.version != here.version) continue;
    const std::int64_t lap = here.end >= n_ ? n_ : 0;
    Gap gap{storage, here.end - lap, there.begin + (wraps ? n_ : 0) - lap, 0, here.version};
    if (gap.to <= gap.from + 1) continue;
    gap.wraps = gap.to >= n_;
    gap.movable = true;
    if (here.version != kHomeVersion) {
      const std::int64_t written = written_[here.version];
      gap.written = written <= gap.from ? written : written - n_;
    }
    here.cut = static_cast<std::uint32_t>(slots_life_.gaps.size());
    slots_life_.gaps.push_back(gap);
  }
}

/// Whether the first or the last step may move the value between device and flash with no slot of
/// the steady state on the way.
bool Stager::transits(std::uint32_t storage) const {
  if (life_.accesses_of(storage).empty()) return false;
  const std::uint32_t g = life_.gap_begin[storage + 1] - 1;
  const Gap& wrap = life_.gaps[g];
  if (!choice_.moved[g]) return true;
  if (wrap.version != kHomeVersion && choice_.store_after[wrap.version] == kNoStore) return true;
  return !wrap.dead && choice_.fetch_from[g] < n_;
}

/// Per position: the bytes held if no value goes to flash, and those that cannot go.
void Stager::sum_profiles() {
  const auto size = static_cast<std::size_t>(n_);
  std::vector<std::int64_t> live(size + 1, 0);
  std::vector<std::int64_t> inside(size + 1, 0);
  const auto add = [&](std::vector<std::int64_t>& to, std::int64_t first, std::int64_t last,
                       std::uint64_t bytes) {
    if (first > last) return;
    to[static_cast<std::size_t>(first)] += static_cast<std::int64_t>(bytes);
    to[static_cast<std::size_t>(last + 1)] -= static_cast<std::int64_t>(bytes);
  };
  for (std::uint32_t s = 0; s < events_.size(); ++s) {
    if (events_[s].empty()) continue;
    const bool persistent = graph_.storages[s].persistent;
    std::int64_t end = 0;
    for (const Event& event : events_[s]) end = std::max(end, event.end);
    add(live, persistent ? 0 : events_[s].front().begin, persistent ? n_ - 1 : end, life_.bytes[s]);
  }
  for (const Gap& gap : slots_life_.gaps) {
    add(inside, gap.from + 1, std::min(gap.to, n_) - 1, life_.bytes[gap.storage]);
    add(inside, 0, gap.to - n_ - 1, life_.bytes[gap.storage]);
  }
  slots_life_.live.assign(size, always_bytes_);
  slots_life_.working_set.assign(size, always_bytes_);
  std::int64_t live_sum = 0;
  std::int64_t inside_sum = 0;
  for (std::size_t p = 0; p < size; ++p) {
    live_sum += live[p];
    inside_sum += inside[p];
    HO_CHECK(inside_sum >= 0 && live_sum >= inside_sum);
    slots_life_.live[p] += static_cast<std::uint64_t>(live_sum);
    slots_life_.working_set[p] += static_cast<std::uint64_t>(live_sum - inside_sum);
  }
  slots_life_.live[0] += out_.transit_bytes;
  slots_life_.working_set[0] += out_.transit_bytes;
}

/// Transfers [first, first + count) of the storage, counted cyclically, use one slot.
void Stager::close_slot(std::uint32_t storage, std::size_t first, std::size_t count,
                        std::uint32_t arrives, std::uint32_t leaves, const Choice& below) {
  const auto& events = events_[storage];
  const auto slot = static_cast<std::uint32_t>(out_.slots.size());
  const std::size_t last = first + count - 1;
  Staging::Slot held{storage, events[first].begin, 0};
  if (arrives != kNone) {
    const Gap& gap = slots_life_.gaps[arrives];
    const std::int64_t early = gap.to - below.fetch_from[arrives];
    held.begin -= early;
    const std::uint32_t fetch = events[first].fetch;
    HO_CHECK(fetch != kNone && early >= 0);
    out_.stage_in_from[fetch] = choice_.fetch_from[fetch] - early;
  }
  const Event& final = events[last % events.size()];
  held.end = final.end + (last >= events.size() ? n_ : 0);
  if (leaves != kNone) held.end += below.detach_by[leaves] - slots_life_.gaps[leaves].from;
  for (std::size_t i = first; i <= last; ++i) {
    const Event& event = events[i % events.size()];
    if (event.fetch == kNone) {
      out_.slot_of_store[event.version] = slot;
    } else {
      out_.slot_of_fetch[event.fetch] = slot;
    }
  }
  const bool spans = last >= events.size() && events.front().fetch != kNone &&
                     events.front().version == events.back().version;
  held.carried = graph_.storages[storage].persistent && (held.begin <= 0 || spans);
  HO_CHECK(held.begin <= held.end && held.end - held.begin < n_);
  out_.slots.push_back(held);
}

void Stager::cut_slots(std::uint32_t storage, const Choice& below) {
  const auto& events = events_[storage];
  std::vector<std::size_t> cuts;  // transfers after which the value leaves for flash
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (events[i].cut != kNone && below.moved[events[i].cut]) cuts.push_back(i);
  }
  if (cuts.empty()) return;
  out_.on_flash[storage] = 1;
  for (const std::size_t cut : cuts) {
    const std::uint32_t version = events[cut].version;
    if (version == kHomeVersion) continue;
    HO_CHECK(below.store_after[version] != kNoStore);
    out_.stage_out_after[version] = std::min(below.store_after[version], n_ - 1);
  }
  const bool persistent = graph_.storages[storage].persistent;
  if (!persistent) {
    close_slot(storage, 0, cuts[0] + 1, kNone, events[cuts[0]].cut, below);
  }
  for (std::size_t c = 0; c < cuts.size(); ++c) {
    const bool last = c + 1 == cuts.size();
    const std::uint32_t arrives = events[cuts[c]].cut;
    const std::size_t first = (cuts[c] + 1) % events.size();
    if (last && !persistent) {
      close_slot(storage, first, events.size() - first, arrives, kNone, below);
      continue;
    }
    const std::size_t next = cuts[(c + 1) % cuts.size()];
    const std::size_t count = (next + events.size() - first) % events.size() + 1;
    close_slot(storage, first, count, arrives, events[next].cut, below);
  }
}

Staging Stager::run(const ChooseOptions& options) {
  const std::size_t storages = graph_.storages.size();
  out_.on_flash.assign(storages, 0);
  out_.slot_of_store.assign(life_.versions, kNone);
  out_.slot_of_fetch.assign(life_.gaps.size(), kNone);
  out_.stage_out_after.assign(life_.versions, kNoStore);
  out_.stage_in_from.assign(life_.gaps.size(), kNoStore);
  slots_life_.positions = life_.positions;
  slots_life_.versions = life_.versions;
  slots_life_.bytes = life_.bytes;
  slots_life_.copies = life_.copies;
  events_.resize(storages);
  stored_.assign(life_.versions, 0);
  written_.assign(life_.versions, 0);
  std::vector<std::uint64_t> flash_always(1, 0);
  for (std::uint32_t s = 0; s < storages; ++s) {
    if (in_.tier_of[s] == 0 && !uses_ddr(s)) always_bytes_ += life_.bytes[s];
    if (!uses_ddr(s)) continue;
    collect_events(s);
    collect_gaps(s);
    if (!graph_.storages[s].persistent) continue;
    if (events_[s].empty()) out_.on_flash[s] = 1;
    flash_always[0] += life_.bytes[s];
    if (transits(s)) out_.transit_bytes = std::max(out_.transit_bytes, life_.bytes[s]);
  }
  sum_profiles();
  const std::vector<std::uint8_t> tier_of(storages, 0);
  std::vector<std::int64_t> durations = in_.duration_ns;
  for (std::size_t p = 0; p < durations.size(); ++p) durations[p] += choice_.stall_ns[p];
  const ChooseInput below_input{slots_life_, durations,    flash_,
                                tier_of,     flash_always, in_.home_is_static};
  const Choice below = choose(below_input, options);
  out_.failure = below.failure;
  for (std::size_t p = 0; p < slots_life_.positions && !out_.failure; ++p) {
    if (slots_life_.working_set[p] <= in_.tiers[0].capacity_bytes) continue;
    out_.failure = {static_cast<std::uint32_t>(p), std::nullopt, slots_life_.working_set[p]};
  }
  if (out_.failure) return std::move(out_);
  out_.flash_read = flash_.front().read;
  for (std::uint32_t s = 0; s < storages; ++s) cut_slots(s, below);
  return std::move(out_);
}

}  // namespace

Staging stage(const Graph& graph, const ChooseInput& input, const Choice& choice,
              const PlanTier& flash, const ChooseOptions& options) {
  HO_CHECK(!input.tiers.empty() && flash.tier == schedule::HomeTier::kFlash);
  return Stager(graph, input, choice, flash).run(options);
}

}  // namespace ho::analyzer
