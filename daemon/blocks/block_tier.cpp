#include "daemon/blocks/block_tier.hpp"

#include <algorithm>
#include <utility>

#include "common/base/check.hpp"

namespace ho::daemon {

void BlockTier::add_area(AreaId id, std::uint64_t length_bytes) {
  HO_CHECK(length_bytes > 0 && length_bytes <= area_bytes_);
  Area area;
  area.length_bytes = length_bytes;
  const auto slots = static_cast<std::uint32_t>(area_bytes_ / slot_bytes(length_bytes));
  area.blocks.assign(slots, std::nullopt);
  for (std::uint32_t slot = slots; slot > 0; --slot) area.free.push_back(slot - 1);
  HO_CHECK(areas_.emplace(id, std::move(area)).second);
  Size& size = sizes_[length_bytes];
  size.with_room.insert(id);
  size.slots += slots;
  size.free += slots;
}

void BlockTier::remove_area(AreaId id) {
  const auto area = areas_.find(id);
  HO_CHECK(area != areas_.end() && area->second.free.size() == area->second.blocks.size());
  const auto size = sizes_.find(area->second.length_bytes);
  size->second.with_room.erase(id);
  size->second.slots -= area->second.blocks.size();
  size->second.free -= area->second.blocks.size();
  if (size->second.slots == 0) sizes_.erase(size);
  areas_.erase(area);
}

std::map<AreaId, std::uint64_t> BlockTier::area_sizes() const {
  std::map<AreaId, std::uint64_t> out;
  for (const auto& [id, area] : areas_) out[id] = area.length_bytes;
  return out;
}

std::vector<std::uint64_t> BlockTier::sizes() const {
  std::vector<std::uint64_t> out;
  for (const auto& [bytes, size] : sizes_) out.push_back(bytes);
  return out;
}

bool BlockTier::takes(std::uint64_t length_bytes) const {
  return sizes_.count(length_bytes) > 0 || sizes_.size() < kSizesMax;
}

std::optional<AreaId> BlockTier::coldest_before(std::uint64_t used,
                                                std::uint64_t except_bytes) const {
  std::optional<AreaId> out;
  for (const auto& [id, area] : areas_) {
    if (area.length_bytes == except_bytes || area.held > 0) continue;
    const std::uint64_t latest = area.free.size() == area.blocks.size() ? 0 : area.used;
    if (latest >= used) continue;
    used = latest;
    out = id;
  }
  return out;
}

std::optional<AreaId> BlockTier::coldest() const { return coldest_before(UINT64_MAX, 0); }

std::optional<AreaId> BlockTier::colder(std::uint64_t length_bytes) const {
  const auto size = sizes_.find(length_bytes);
  if (size == sizes_.end() || size->second.order.empty()) return std::nullopt;
  return coldest_before(size->second.order.begin()->used, length_bytes);
}

std::vector<BlockNumber> BlockTier::blocks_of(AreaId id) const {
  std::vector<BlockNumber> out;
  for (const auto& block : areas_.at(id).blocks) {
    if (block) out.push_back(*block);
  }
  return out;
}

bool BlockTier::has_room(std::uint64_t length_bytes) const { return free_slots(length_bytes) > 0; }

std::uint64_t BlockTier::free_slots(std::uint64_t length_bytes) const {
  const auto size = sizes_.find(length_bytes);
  return size == sizes_.end() ? 0 : size->second.free;
}

std::uint64_t BlockTier::slots(std::uint64_t length_bytes) const {
  const auto size = sizes_.find(length_bytes);
  return size == sizes_.end() ? 0 : size->second.slots;
}

BlockCopy BlockTier::occupy(Area& area, AreaId id, std::uint32_t slot, BlockNumber block) {
  Size& size = sizes_.at(area.length_bytes);
  area.blocks[slot] = block;
  area.held += 1;
  size.free -= 1;
  size.taken += 1;
  if (area.free.empty()) size.with_room.erase(id);
  BlockCopy copy;
  copy.area = id;
  copy.slot = slot;
  copy.length_bytes = area.length_bytes;
  return copy;
}

BlockCopy BlockTier::take(std::uint64_t length_bytes, BlockNumber block) {
  HO_CHECK(has_room(length_bytes));
  const AreaId id = *sizes_.at(length_bytes).with_room.begin();
  Area& area = areas_.at(id);
  const std::uint32_t slot = area.free.back();
  area.free.pop_back();
  return occupy(area, id, slot, block);
}

std::optional<BlockCopy> BlockTier::take_slot(AreaId id, std::uint32_t slot, BlockNumber block) {
  const auto found = areas_.find(id);
  if (found == areas_.end()) return std::nullopt;
  Area& area = found->second;
  if (slot >= area.blocks.size() || area.blocks[slot]) return std::nullopt;
  area.free.erase(std::find(area.free.begin(), area.free.end(), slot));
  return occupy(area, id, slot, block);
}

void BlockTier::give_back(const BlockCopy& copy) {
  HO_CHECK(!copy.may_go);
  Area& area = areas_.at(copy.area);
  HO_CHECK(area.held > 0 && area.blocks[copy.slot]);
  area.held -= 1;
  area.blocks[copy.slot].reset();
  area.free.push_back(copy.slot);
  Size& size = sizes_.at(copy.length_bytes);
  size.free += 1;
  size.with_room.insert(copy.area);
}

void BlockTier::note_use(const BlockCopy& copy) {
  std::uint64_t& latest = areas_.at(copy.area).used;
  latest = std::max(latest, copy.used);
}

void BlockTier::let_go(BlockCopy& copy, BlockNumber block) {
  HO_CHECK(copy.ready && !copy.may_go);
  copy.may_go = true;
  note_use(copy);  // the last daemon's
  areas_.at(copy.area).held -= 1;
  Size& size = sizes_.at(copy.length_bytes);
  HO_CHECK(size.order.insert(rank_of(copy, block)).second);
}

void BlockTier::hold(BlockCopy& copy, BlockNumber block) {
  HO_CHECK(copy.may_go);
  copy.may_go = false;
  areas_.at(copy.area).held += 1;
  Size& size = sizes_.at(copy.length_bytes);
  HO_CHECK(size.order.erase(rank_of(copy, block)) == 1);
}

void BlockTier::use(BlockCopy& copy, BlockNumber block, std::uint64_t weight, std::uint64_t used) {
  HO_CHECK(copy.ready);
  Size& size = sizes_.at(copy.length_bytes);
  if (copy.may_go) HO_CHECK(size.order.erase(rank_of(copy, block)) == 1);
  copy.worth = size.clock + weight;
  copy.used = used;
  note_use(copy);
  if (copy.may_go) HO_CHECK(size.order.insert(rank_of(copy, block)).second);
}

std::optional<BlockNumber> BlockTier::cheapest(std::uint64_t length_bytes) const {
  const auto size = sizes_.find(length_bytes);
  if (size == sizes_.end() || size->second.order.empty()) return std::nullopt;
  return size->second.order.begin()->block;
}

void BlockTier::note_evicted(const BlockCopy& copy) {
  Size& size = sizes_.at(copy.length_bytes);
  size.clock = std::max(size.clock, copy.worth);
}

std::uint64_t BlockTier::taken(std::uint64_t length_bytes) const {
  const auto size = sizes_.find(length_bytes);
  return size == sizes_.end() ? 0 : size->second.taken;
}

std::uint64_t BlockTier::clock(std::uint64_t length_bytes) const {
  const auto size = sizes_.find(length_bytes);
  return size == sizes_.end() ? 0 : size->second.clock;
}

}  // namespace ho::daemon
