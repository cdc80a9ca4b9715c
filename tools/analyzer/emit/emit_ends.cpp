#include <algorithm>
#include <optional>
#include <utility>

#include "common/base/check.hpp"
#include "common/model/links.hpp"
#include "tools/analyzer/emit/emitter.hpp"

// The ends of a run: the fetches of the first step, and the Stores after the last one.
namespace ho::analyzer {

using schedule::CacheOp;
using schedule::CacheOpIndex;
using schedule::CacheOpKind;
using schedule::Position;

/// A value that the steady state finds on the device, in flight or in a staging slot when a step
/// begins.
struct Emitter::FirstUse {
  std::uint32_t storage = 0;
  std::uint32_t position = 0;  ///< the first one that waits for it
  std::uint32_t slot = kNone;  ///< the staging slot that holds it then
  bool fetched = false;        ///< it is on the device, or on its way there
};

/// Whether the steady state finds the storage on the device, or on its way, when a step begins.
bool Emitter::begins_on_device(std::uint32_t storage) const {
  const std::uint32_t wrap = life_.gap_begin[storage + 1] - 1;
  if (!decisions_.moved[wrap]) return true;
  return fetch_of_[wrap] != kNone &&
         step_of_fetch(storage, position_of(decisions_.fetch_from[wrap])) <= 0;
}

/// Values of the prologue, in the order in which they are needed.
std::vector<Emitter::FirstUse> Emitter::first_uses() const {
  std::vector<std::uint32_t> carried(graph_.storages.size(), kNone);
  for (std::uint32_t i = 0; i < staging_.slots.size(); ++i) {
    if (staging_.slots[i].carried) carried[staging_.slots[i].storage] = i;
  }
  std::vector<FirstUse> out;
  for (std::uint32_t s = 0; s < graph_.storages.size(); ++s) {
    if (!graph_.storages[s].persistent || life_.accesses_of(s).empty()) continue;
    if (life_.accesses_of(s).front().access == schedule::Access::kWrite) continue;  // no value yet
    FirstUse use{s, life_.accesses_of(s).front().position, carried[s], begins_on_device(s)};
    if (!use.fetched) {
      if (use.slot == kNone) continue;
      // The Prefetch of the step itself reads the slot: it starts after this position.
      const std::int64_t after =
          position_of(decisions_.fetch_from[life_.gap_begin[s + 1] - 1]) - 1 - n_;
      HO_CHECK(after >= 0 && after < n_);
      use.position = static_cast<std::uint32_t>(after);
    }
    out.push_back(use);
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const FirstUse& a, const FirstUse& b) { return a.position < b.position; });
  return out;
}

/// Local DDR for transfers of up to `largest` bytes on their way between flash and device.
std::vector<TransitRoom> Emitter::rooms_for(std::uint64_t largest,
                                            std::int64_t wanted_until) const {
  std::vector<TakenBytes> taken;
  for (const DdrStay& stay : ddr_stays_) {
    const std::int64_t first = position_of(stay.held.begin);
    const bool spans = first <= 0 || stay.held.end >= cycle_;
    taken.push_back({spans ? 0 : first, {stay.held.offset, stay.held.offset + stay.held.bytes}});
  }
  const std::uint64_t limit =
      std::max(ddr_top_, std::min(in_.tiers[0].capacity_bytes, ddr_top_ + 2 * largest));
  return transit_rooms(std::move(taken), {ddr_bottom_, limit}, largest, wanted_until);
}

/// @param after  what it waits for in `list`.
void Emitter::add_once(std::vector<CacheOp>& list, CacheOp op, std::uint64_t ddr_offset,
                       const std::vector<std::uint32_t>& after) {
  op.ddr_offset_bytes = ddr_offset;
  for (const std::uint32_t before : after) {
    op.after_cache_ops.push_back({CacheOpIndex(before), false});
  }
  list.push_back(std::move(op));
}

/// When the first step ends if only the prologue's transfers delay it.
std::int64_t Emitter::first_step_ns(const std::vector<CacheOp>& prologue) const {
  std::vector<std::int64_t> lane_free(in_.tiers.size() + 1, 0);  // the last one is flash's
  std::vector<std::int64_t> end(prologue.size(), 0);
  std::vector<std::int64_t> arrives(static_cast<std::size_t>(n_), 0);
  for (std::size_t i = 0; i < prologue.size(); ++i) {
    const CacheOp& op = prologue[i];
    const bool stages = op.kind == CacheOpKind::kStageIn;
    const std::size_t lane = stages ? in_.tiers.size() : in_.tier_of[op.storage.value()];
    std::int64_t start = lane_free[lane];
    for (const auto& ref : op.after_cache_ops) start = std::max(start, end[ref.op.value()]);
    end[i] = start +
             transfer_ns(stages ? staging_.flash_read : in_.tiers[lane].read, op.range_end_bytes);
    lane_free[lane] = end[i];
    auto& at = arrives[op.before_position->value()];
    at = std::max(at, end[i]);
  }
  std::int64_t now = 0;
  for (std::size_t p = 0; p < arrives.size(); ++p) {
    now = std::max(now, arrives[p]) + in_.duration_ns[p];
  }
  return now;
}

/// In order of need, which uses a link best: a transfer waits only for the link and, from flash,
/// for room in local DDR. Takes the room with the shorter first step, if there are two.
void Emitter::emit_prologue() {
  const std::vector<FirstUse> uses = first_uses();
  std::uint64_t largest = 0;
  std::int64_t last = 0;
  for (const FirstUse& use : uses) {
    if (!transits(use)) continue;
    largest = std::max(largest, life_.bytes[use.storage]);
    last = use.position;
  }
  if (largest == 0) {
    out_.prologue = prologue_through({}, uses);
    return;
  }
  std::int64_t best_ns = 0;
  std::uint64_t top = 0;
  for (const TransitRoom& room : rooms_for(largest, last)) {
    std::vector<CacheOp> list = prologue_through(room, uses);
    const std::int64_t ns = first_step_ns(list);
    if (!out_.prologue.empty() && ns >= best_ns) continue;
    best_ns = ns;
    top = room.bytes.end;
    out_.prologue = std::move(list);
  }
  out_.home_bytes[0] = std::max(out_.home_bytes[0], top);
}

/// Whether the value comes from flash and leaves no copy in local DDR.
bool Emitter::transits(const FirstUse& use) const {
  return on_flash(use.storage) && use.slot == kNone;
}

std::vector<CacheOp> Emitter::prologue_through(const TransitRoom& room,
                                               const std::vector<FirstUse>& uses) const {
  std::vector<CacheOp> out;
  TransitRing ring(room.bytes);
  for (const FirstUse& use : uses) {
    if (on_flash(use.storage)) {
      add_from_flash(use, transits(use) ? &ring : nullptr, room.until, out);
      continue;
    }
    CacheOp op = whole(CacheOpKind::kPrefetch, use.storage,
                       out_.access_offset[life_.access_begin[use.storage]]);
    op.before_position = Position(use.position);
    out.push_back(std::move(op));
  }
  return out;
}

/// Goes through the ring, whose bytes belong to others after `until`, or into the slot that holds
/// it in the steady state.
void Emitter::add_from_flash(const FirstUse& use, TransitRing* ring, std::int64_t until,
                             std::vector<CacheOp>& out) const {
  const auto staged = static_cast<std::uint32_t>(out.size());
  std::int64_t before = use.position;
  TransitRing::Place place;
  if (ring != nullptr) {
    before = std::min(before, until);
    place = ring->take(life_.bytes[use.storage], staged + 1);
  } else {
    place.offset = slot_offset_[use.slot];
    // The next owner of its bytes waits only for ops of this step.
    const std::int64_t end = staging_.slots[use.slot].end;
    const std::int64_t released = position_of(end >= cycle_ ? end - cycle_ : end);
    before = std::min(before, std::max<std::int64_t>(0, released - 1));
  }
  CacheOp in = whole(CacheOpKind::kStageIn, use.storage, 0);
  in.before_position = Position(static_cast<std::uint32_t>(before));
  add_once(out, std::move(in), place.offset, place.after);
  if (!use.fetched) return;
  CacheOp fetch = whole(CacheOpKind::kPrefetch, use.storage,
                        out_.access_offset[life_.access_begin[use.storage]]);
  fetch.before_position = Position(static_cast<std::uint32_t>(before));
  add_once(out, std::move(fetch), place.offset, {staged});
}

/// Stores persistent values whose last version has no Store of its own. Those on flash go first,
/// the smallest of them first: flash is the slower link, so an early start ends all sooner
/// (Johnson's rule for two machines, the second one slower).
void Emitter::emit_epilogue() {
  std::vector<std::uint32_t> to_flash;
  std::vector<std::uint32_t> to_ddr;
  std::uint64_t largest = 0;
  const auto version_of = [&](std::uint32_t s) {
    return life_.gaps[life_.gap_begin[s + 1] - 1].version;
  };
  for (std::uint32_t s = 0; s < graph_.storages.size(); ++s) {
    if (!graph_.storages[s].persistent || life_.accesses_of(s).empty()) continue;
    const std::uint32_t version = version_of(s);
    if (version == kHomeVersion) continue;
    if (on_flash(s)) {
      if (stage_out_of_[version] != kNone) continue;
      to_flash.push_back(s);
      if (store_of_[version] == kNone) largest = std::max(largest, life_.bytes[s]);
    } else if (store_of_[version] == kNone) {
      to_ddr.push_back(s);
    }
  }
  std::optional<TransitRing> ring;
  if (largest > 0) {
    const TransitRoom room = rooms_for(largest, 0).front();
    ring.emplace(room.bytes);
    out_.home_bytes[0] = std::max(out_.home_bytes[0], room.bytes.end);
  }
  // A value in a slot needs no Store first, so it counts as having no size.
  const auto through_ddr = [&](std::uint32_t s) {
    return store_of_[version_of(s)] == kNone ? life_.bytes[s] : 0;
  };
  std::stable_sort(to_flash.begin(), to_flash.end(), [&](std::uint32_t a, std::uint32_t b) {
    return through_ddr(a) < through_ddr(b);
  });
  for (const std::uint32_t s : to_flash) emit_epilogue_to_flash(s, version_of(s), ring);
  for (const std::uint32_t s : to_ddr) {
    const std::size_t access = life_.access_begin[s + 1] - 1;
    out_.epilogue.push_back(whole(CacheOpKind::kStore, s, out_.access_offset[access]));
  }
}

/// From its staging slot, or from the device through the ring.
void Emitter::emit_epilogue_to_flash(std::uint32_t storage, std::uint32_t version,
                                     std::optional<TransitRing>& ring) {
  if (store_of_[version] != kNone) {
    const std::uint64_t slot = slot_offset_[staging_.slot_of_store[version]];
    add_once(out_.epilogue, whole(CacheOpKind::kStageOut, storage, 0), slot, {});
    return;
  }
  const auto store = static_cast<std::uint32_t>(out_.epilogue.size());
  const TransitRing::Place place = ring->take(life_.bytes[storage], store + 1);
  const std::uint64_t offset = out_.access_offset[life_.access_begin[storage + 1] - 1];
  add_once(out_.epilogue, whole(CacheOpKind::kStore, storage, offset), place.offset, place.after);
  add_once(out_.epilogue, whole(CacheOpKind::kStageOut, storage, 0), place.offset, {store});
}

}  // namespace ho::analyzer
