#include "tools/analyzer/emit/staging.hpp"

#include <algorithm>
#include <utility>

#include "common/base/check.hpp"
#include "tools/analyzer/problem/problem.hpp"

namespace ho::analyzer {
namespace {

/// One transfer between device and local DDR: the moments during which it needs the slot.
struct Event {
  std::int64_t begin = 0;                ///< in step 0
  std::int64_t order = 0;                ///< by which transfers of one storage follow each other
  std::int64_t end = 0;                  ///< may lie in the next step
  std::uint32_t version = 0;             ///< that it writes or reads
  std::uint32_t fetch = Staging::kNone;  ///< the gap whose Prefetch it is; Staging::kNone: a Store
  bool closes = false;                   ///< the slot is given to others after it
  std::int64_t held = 0;                 ///< if so: moments for which the slot is held after `end`
};

class Stager {
 public:
  Stager(const Graph& graph, const Problem& input, const Decisions& decisions)
      : graph_(graph),
        life_(input.lifetimes),
        decisions_(decisions),
        cycle_(life_.positions * kMoments),
        stored_(life_.versions, 0) {}
  Staging run(const Problem& input);

 private:
  void collect_events(std::uint32_t storage);
  void find_closings(std::uint32_t storage);
  [[nodiscard]] bool transits(std::uint32_t storage) const;
  void cut_slots(std::uint32_t storage);
  void close_slot(std::uint32_t storage, std::size_t first, std::size_t count);

  const Graph& graph_;
  const Lifetimes& life_;
  const Decisions& decisions_;
  std::int64_t cycle_;                // moments of a step
  std::vector<std::uint8_t> stored_;  // per version: its Store is among the events
  std::vector<Event> events_;         // of one storage, by begin
  Staging out_;
};

void Stager::collect_events(std::uint32_t storage) {
  events_.clear();
  for (std::uint32_t g = life_.gap_begin[storage]; g < life_.gap_begin[storage + 1]; ++g) {
    const Gap& gap = life_.gaps[g];
    if (!decisions_.moved[g]) continue;
    if (gap.version != kHomeVersion && decisions_.store_from[gap.version] != kNoStore) {
      const bool known = std::exchange(stored_[gap.version], 1) != 0;
      // After the last op: a Prefetch for that op comes before.
      const std::int64_t order = decisions_.store_from[gap.version];
      const std::int64_t begin = std::min(order, cycle_ - 1);
      const std::int64_t end = std::clamp(decisions_.stored_by[gap.version], begin, cycle_ - 1);
      if (!known) events_.push_back({begin, order, end, gap.version});
    }
    if (gap.dead) continue;
    const std::int64_t begin = decisions_.fetch_from[g] % cycle_;
    const std::int64_t end = begin + decisions_.fetched_by[g] - decisions_.fetch_from[g];
    events_.push_back({begin, begin, end, gap.version, g});
  }
  std::stable_sort(events_.begin(), events_.end(), [](const Event& a, const Event& b) {
    return std::pair(a.order, a.fetch != Staging::kNone) <
           std::pair(b.order, b.fetch != Staging::kNone);
  });
  for (std::size_t i = 0; i + 1 < events_.size(); ++i) {
    // A write-back ends before the value returns, even if the plan had it later.
    events_[i].end = std::max(events_[i].begin, std::min(events_[i].end, events_[i + 1].begin - 1));
  }
}

/// A slot is given away when its value comes back from flash later, or when the next transfer
/// stores another value. The last value of a step is kept in it, or on flash, until the step
/// ends.
void Stager::find_closings(std::uint32_t storage) {
  for (std::size_t i = 0; i < events_.size(); ++i) {
    const bool wraps = i + 1 == events_.size();
    if (wraps && !graph_.storages[storage].persistent) break;
    Event& here = events_[i];
    const Event& there = wraps ? events_.front() : events_[i + 1];
    const std::int64_t next = there.begin + (wraps ? cycle_ : 0);
    if (next <= here.end + 1) continue;
    if (there.fetch == Staging::kNone) {
      here.closes = !wraps;
    } else if (decisions_.staged[there.fetch] != 0) {
      here.closes = true;
      const std::int64_t until =
          decisions_.slot_until[there.fetch] + next - decisions_.fetch_from[there.fetch];
      here.held = std::clamp<std::int64_t>(until - here.end, 0, next - here.end - 1);
    }
  }
}

/// Whether the first or the last step may move the value between device and flash with no slot of
/// the steady state on the way.
bool Stager::transits(std::uint32_t storage) const {
  if (life_.accesses_of(storage).empty()) return false;
  const std::uint32_t g = life_.gap_begin[storage + 1] - 1;
  const Gap& wrap = life_.gaps[g];
  if (!decisions_.moved[g]) return true;
  if (wrap.version != kHomeVersion && decisions_.store_from[wrap.version] == kNoStore) return true;
  return !wrap.dead && decisions_.fetch_from[g] < cycle_;
}

/// Transfers [first, first + count) of the storage, counted cyclically, use one slot.
void Stager::close_slot(std::uint32_t storage, std::size_t first, std::size_t count) {
  const auto slot = static_cast<std::uint32_t>(out_.slots.size());
  const std::size_t last = first + count - 1;
  const Event& opens = events_[first];
  const Event& final = events_[last % events_.size()];
  Staging::Slot held{storage, opens.begin, final.end + final.held};
  if (last >= events_.size()) held.end += cycle_;
  if (opens.fetch == Staging::kNone) held.opens = opens.version;
  if (opens.fetch != Staging::kNone && decisions_.staged[opens.fetch] != 0) {
    const std::uint32_t g = opens.fetch;
    const std::int64_t in_from = decisions_.stage_in_from[g];
    held.begin -= decisions_.fetch_from[g] - in_from;
    out_.stage_in_from[g] = in_from;
  }
  for (std::size_t i = first; i <= last; ++i) {
    const Event& event = events_[i % events_.size()];
    if (event.fetch == Staging::kNone) {
      out_.slot_of_store[event.version] = slot;
      out_.store_step[event.version] = i < events_.size() ? 0 : 1;
    } else {
      out_.slot_of_fetch[event.fetch] = slot;
      held.last_fetch = event.fetch;
      held.last_fetch_step = position_of(event.begin) == 0 ? -1 : 0;
      if (i >= events_.size()) ++held.last_fetch_step;
    }
  }
  const bool spans = last >= events_.size() && events_.front().fetch != Staging::kNone &&
                     events_.front().version == events_.back().version;
  held.carried = graph_.storages[storage].persistent && (position_of(held.begin) <= 0 || spans);
  HO_CHECK(held.begin <= held.end && held.end - held.begin < cycle_);
  out_.slots.push_back(held);
}

void Stager::cut_slots(std::uint32_t storage) {
  std::vector<std::size_t> cuts;
  for (std::size_t i = 0; i < events_.size(); ++i) {
    if (events_[i].closes) cuts.push_back(i);
  }
  const bool persistent = graph_.storages[storage].persistent;
  const bool comes_back = std::any_of(events_.begin(), events_.end(), [&](const Event& event) {
    return event.fetch != Staging::kNone && decisions_.staged[event.fetch] != 0;
  });
  if (cuts.empty() || (!persistent && !comes_back)) return;
  out_.on_flash[storage] = 1;
  for (std::size_t i = 0; i < events_.size(); ++i) {
    const Event& event = events_[i];
    if (event.fetch == Staging::kNone || decisions_.staged[event.fetch] == 0) continue;
    const Event& before = events_[i > 0 ? i - 1 : events_.size() - 1];
    if (!before.closes) continue;  // its slot still holds the value
    if (event.version == kHomeVersion) continue;
    HO_CHECK(decisions_.stage_out_from[event.version] != kNoStore);
    out_.stage_out_from[event.version] = decisions_.stage_out_from[event.version];
  }
  if (!persistent) close_slot(storage, 0, cuts[0] + 1);
  for (std::size_t c = 0; c < cuts.size(); ++c) {
    const bool last = c + 1 == cuts.size();
    const std::size_t first = (cuts[c] + 1) % events_.size();
    if (last && !persistent) {
      if (first != 0) close_slot(storage, first, events_.size() - first);
      continue;
    }
    const std::size_t next = cuts[(c + 1) % cuts.size()];
    close_slot(storage, first, (next + events_.size() - first) % events_.size() + 1);
  }
}

Staging Stager::run(const Problem& input) {
  const std::size_t storages = graph_.storages.size();
  out_.on_flash.assign(storages, 0);
  out_.slot_of_store.assign(life_.versions, Staging::kNone);
  out_.store_step.assign(life_.versions, 0);
  out_.slot_of_fetch.assign(life_.gaps.size(), Staging::kNone);
  out_.stage_out_from.assign(life_.versions, kNoStore);
  out_.stage_in_from.assign(life_.gaps.size(), kNoStore);
  out_.flash_read = input.flash->read;
  for (std::uint32_t s = 0; s < storages; ++s) {
    const bool persistent = graph_.storages[s].persistent;
    if (input.tier_of[s] != 0 || (input.home_is_static[s] && !persistent)) continue;
    collect_events(s);
    if (persistent && events_.empty()) out_.on_flash[s] = 1;
    if (decisions_.on_flash[s] != 0) {
      find_closings(s);
      cut_slots(s);
    }
    if (persistent && out_.on_flash[s] != 0 && transits(s)) {
      out_.transit_bytes = std::max(out_.transit_bytes, life_.bytes[s]);
    }
  }
  return std::move(out_);
}

}  // namespace

Staging stage(const Graph& graph, const Problem& input, const Decisions& decisions) {
  HO_CHECK(!input.tiers.empty() && input.flash != nullptr);
  return Stager(graph, input, decisions).run(input);
}

}  // namespace ho::analyzer
