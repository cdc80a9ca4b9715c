#include <algorithm>
#include <utility>

#include "common/base/check.hpp"
#include "tools/analyzer/emit/emitter.hpp"
#include "tools/analyzer/emit/packing.hpp"

// Below the device: home slots, staging slots, and the cache ops that only these need.
namespace ho::analyzer {

using schedule::CacheOp;
using schedule::CacheOpIndex;
using schedule::CacheOpKind;
using schedule::HomeTier;
using schedule::Position;

/// The home slot of a storage that leaves the device: from its first Store to its last Prefetch.
void Emitter::add_home_block(std::uint32_t storage) {
  DdrStay stay{{cycle_, -1, 0, life_.bytes[storage]}, storage};
  std::uint32_t first = kNone;
  for (std::uint32_t g = life_.gap_begin[storage]; g < life_.gap_begin[storage + 1]; ++g) {
    const Gap& gap = life_.gaps[g];
    if (!decisions_.moved[g] || gap.dead) continue;
    const std::int64_t begin = std::min(decisions_.store_from[gap.version], cycle_ - 1);
    if (begin < stay.held.begin) first = gap.version;
    stay.held.begin = std::min(stay.held.begin, begin);
    // Without order of their own, slots follow one another from op to op.
    const bool ordered = staging_.active() && in_.tier_of[storage] == 0;
    const std::int64_t end = ordered ? decisions_.fetched_by[g] : gap.to * kMoments + kMoments - 1;
    if (end < stay.held.end) continue;
    stay.held.end = end;
    stay.last_fetch = g;
  }
  if (first == kNone) return;
  stay.held.end = std::max(stay.held.end, stay.held.begin);
  stay.begins = first;  // the version's Store, once it exists
  ddr_stays_.push_back(stay);
}

/// Slots of persistent and supplied values are at the bottom of their tier all the time. The others
/// share the bytes above over time, staging slots among them.
void Emitter::pack_tier(std::size_t tier) {
  ddr_stays_.clear();
  for (std::uint32_t s = 0; s < graph_.storages.size(); ++s) {
    if (in_.home_is_static[s] || in_.tier_of[s] != tier || on_flash(s)) continue;
    add_home_block(s);
  }
  if (tier == 0 && staging_.active()) {
    for (std::uint32_t i = 0; i < staging_.slots.size(); ++i) {
      const Staging::Slot& slot = staging_.slots[i];
      DdrStay stay{{slot.begin, slot.end, 0, life_.bytes[slot.storage]}, slot.storage};
      stay.slot = i;
      ddr_stays_.push_back(stay);
    }
  }
  std::vector<Block> blocks;
  for (DdrStay& stay : ddr_stays_) {
    // The first step begins with the values of all slots that one in between fills beside its first
    // op, in any order.
    const std::int64_t within = ((stay.held.begin % cycle_) + cycle_) % cycle_;
    if (within < kMoments) stay.held.begin -= within;
    stay.held.end = std::min(stay.held.end, stay.held.begin + cycle_ - 1);
    blocks.push_back({stay.held.begin, stay.held.end, stay.held.bytes});
  }
  // The room of first and last steps: kept free here, placed by transit_rooms().
  if (tier == 0 && staging_.transit_bytes > 0)
    blocks.push_back({0, kMoments - 1, staging_.transit_bytes});
  const std::uint64_t bottom = out_.home_bytes[tier];
  if (tier == 0) ddr_bottom_ = bottom;
  const std::uint64_t room = std::max(in_.tiers[tier].capacity_bytes, bottom) - bottom;
  const std::uint64_t enough = std::max(room, largest_load(blocks, cycle_));
  const Packing packing = pack(blocks, cycle_, enough);
  for (std::size_t i = 0; i < ddr_stays_.size(); ++i) {
    DdrStay& stay = ddr_stays_[i];
    stay.held.offset = bottom + packing.offsets[i];
    if (stay.slot == kNone) {
      out_.homes[stay.storage] = {in_.tiers[tier].tier, stay.held.offset};
    } else {
      slot_offset_[stay.slot] = stay.held.offset;
    }
  }
  out_.home_bytes[tier] = bottom + packing.height_bytes;
  if (tier == 0 && packing.height_bytes > room) {
    out_.over_slot_bytes = over_bytes(blocks, packing.offsets, room, n_);
  }
  if (tier == 0) ddr_top_ = out_.home_bytes[tier];
}

/// Homes on flash. Persistent values keep theirs all the time, others from the first StageOut to
/// the last Prefetch that needs it.
void Emitter::pack_flash() {
  std::uint64_t bottom = 0;
  std::vector<Block> blocks;
  std::vector<std::uint32_t> owners;
  for (std::uint32_t s = 0; s < graph_.storages.size(); ++s) {
    if (!on_flash(s)) continue;
    if (in_.home_is_static[s]) {
      out_.homes[s] = {HomeTier::kFlash, bottom};
      bottom += life_.bytes[s];
      continue;
    }
    Block block{cycle_, -1, life_.bytes[s]};
    for (std::uint32_t g = life_.gap_begin[s]; g < life_.gap_begin[s + 1]; ++g) {
      const Gap& gap = life_.gaps[g];
      if (!decisions_.moved[g] || staging_.stage_in_from[g] == kNoStore) continue;
      block.begin = std::min({block.begin, staging_.stage_out_from[gap.version], cycle_ - 1});
      // Slots on flash follow one another from op to op: a StageOut within a position waits only
      // for the op before.
      block.end = std::max(block.end, gap.to * kMoments + kMoments - 1);
    }
    HO_CHECK(block.begin <= block.end);
    blocks.push_back(block);
    owners.push_back(s);
  }
  const Packing packing = pack(blocks, cycle_, UINT64_MAX);
  for (std::size_t i = 0; i < owners.size(); ++i) {
    out_.homes[owners[i]] = {HomeTier::kFlash, bottom + packing.offsets[i]};
  }
  out_.flash_bytes = bottom + packing.height_bytes;
}

void Emitter::pack_homes() {
  out_.homes.assign(graph_.storages.size(), std::nullopt);
  out_.home_bytes.assign(in_.tiers.size(), 0);
  slot_offset_.assign(staging_.slots.size(), 0);
  for (std::uint32_t s = 0; s < graph_.storages.size(); ++s) {
    if (!in_.home_is_static[s] || in_.tiers.empty() || on_flash(s)) continue;
    std::uint64_t& top = out_.home_bytes[in_.tier_of[s]];
    out_.homes[s] = {in_.tiers[in_.tier_of[s]].tier, top};
    top += life_.bytes[s];
  }
  // Local DDR last: the code below uses its stays.
  for (std::size_t t = in_.tiers.size(); t-- > 0;) pack_tier(t);
  if (staging_.active()) pack_flash();
}

void Emitter::emit_staging() {
  stage_out_of_.assign(life_.versions, kNone);
  stage_in_of_.assign(life_.gaps.size(), kNone);
  std::vector<std::uint32_t> storage_of(life_.versions, 0);
  for (const Gap& gap : life_.gaps) {
    if (gap.version != kHomeVersion) storage_of[gap.version] = gap.storage;
  }
  for (std::uint32_t v = 0; v < life_.versions; ++v) {
    if (staging_.stage_out_from[v] == kNoStore) continue;
    HO_CHECK(store_of_[v] != kNone);
    CacheOp op = whole(CacheOpKind::kStageOut, storage_of[v], 0);
    op.ddr_offset_bytes = slot_offset_[staging_.slot_of_store[v]];
    op.after_position = after(staging_.stage_out_from[v]);
    op.after_cache_ops.push_back({CacheOpIndex(store_of_[v]), false});
    stage_out_of_[v] = static_cast<std::uint32_t>(out_.cache_ops.size());
    out_.cache_ops.push_back(std::move(op));
    list_key_.emplace_back(staging_.stage_out_from[v], 0);
  }
  for (std::uint32_t g = 0; g < life_.gaps.size(); ++g) {
    if (staging_.stage_in_from[g] != kNoStore) emit_stage_in(g);
  }
}

/// Brings the value of a gap back to local DDR, where its Prefetch waits for it.
void Emitter::emit_stage_in(std::uint32_t g) {
  const Gap& gap = life_.gaps[g];
  const std::int64_t after = position_of(staging_.stage_in_from[g]) - 1;
  const std::int64_t step = step_of(after, n_);
  CacheOp op = whole(CacheOpKind::kStageIn, gap.storage, 0);
  op.ddr_offset_bytes = slot_offset_[staging_.slot_of_fetch[g]];
  op.after_position = Position(static_cast<std::uint32_t>(after - step * n_));
  stage_in_of_[g] = static_cast<std::uint32_t>(out_.cache_ops.size());
  out_.cache_ops.push_back(std::move(op));
  list_key_.emplace_back(staging_.stage_in_from[g] - step * cycle_, gap.to);
  if (gap.version != kHomeVersion) {
    HO_CHECK(stage_out_of_[gap.version] != kNone);
    wait_for(stage_out_of_[gap.version], gap.written < 0 ? -1 : 0, stage_in_of_[g], step);
  }
  wait_for(stage_in_of_[g], step, fetch_of_[g],
           step_of_fetch(gap.storage, position_of(decisions_.fetch_from[g])));
}

/// A writer of bytes of local DDR waits for the transfers that read them last.
void Emitter::emit_order_of_slots() {
  for (DdrStay& stay : ddr_stays_) {
    if (stay.slot != kNone) continue;
    stay.begins = store_of_[stay.begins];
    const std::int64_t step = step_of_fetch(life_.gaps[stay.last_fetch].storage,
                                            position_of(decisions_.fetch_from[stay.last_fetch]));
    stay.releases.push_back({fetch_of_[stay.last_fetch], step});
  }
  std::vector<std::uint32_t> stay_of(staging_.slots.size(), kNone);
  for (std::uint32_t i = 0; i < ddr_stays_.size(); ++i) {
    if (ddr_stays_[i].slot != kNone) stay_of[ddr_stays_[i].slot] = i;
  }
  for (std::uint32_t v = 0; v < life_.versions; ++v) {
    if (store_of_[v] == kNone || staging_.slot_of_store[v] == kNone) continue;
    DdrStay& stay = ddr_stays_[stay_of[staging_.slot_of_store[v]]];
    if (staging_.slots[stay.slot].opens == v) stay.begins = store_of_[v];
    if (stage_out_of_[v] == kNone) continue;
    stay.releases.push_back({stage_out_of_[v], staging_.store_step[v]});
  }
  for (std::uint32_t g = 0; g < life_.gaps.size(); ++g) {
    if (stage_in_of_[g] == kNone) continue;
    DdrStay& stay = ddr_stays_[stay_of[staging_.slot_of_fetch[g]]];
    stay.begins = stage_in_of_[g];
    stay.begins_step = step_of(position_of(stay.held.begin) - 1, n_);
  }
  for (DdrStay& stay : ddr_stays_) {
    if (stay.slot == kNone || staging_.slots[stay.slot].last_fetch == kNone) continue;
    const Staging::Slot& slot = staging_.slots[stay.slot];
    stay.releases.push_back({fetch_of_[slot.last_fetch], slot.last_fetch_step});
  }
  std::vector<HeldBytes> blocks;
  for (const DdrStay& stay : ddr_stays_) blocks.push_back(stay.held);
  for_each_succession(
      blocks, cycle_,
      [&](std::uint32_t from, std::int64_t from_lap, std::uint32_t to, std::int64_t to_lap) {
        const DdrStay& owner = ddr_stays_[from];
        const DdrStay& next = ddr_stays_[to];
        const std::int64_t begins = to_lap + next.begins_step;
        for (const DdrStay::Release& release : owner.releases) {
          const std::int64_t released = from_lap + release.step;
          if (begins - released > 1) {
            block(release.cache_op, 1, n_ - 1);
          } else {
            wait_for(release.cache_op, released, next.begins, begins);
          }
        }
      });
}

}  // namespace ho::analyzer
