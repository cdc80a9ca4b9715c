// An index that passes to the next daemon.
#include <algorithm>

#include "common/base/check.hpp"
#include "daemon/blocks/block_index.hpp"

namespace ho::daemon {

namespace {

/// Those of the areas that may stay. @param used  of each copy its area, the one used longest ago
/// first.
std::set<AreaId> choose(const std::map<AreaId, std::uint64_t>& areas,
                        const std::vector<AreaId>& used, const BlockIndex::LeaveMost& most) {
  std::set<AreaId> out;
  std::map<AreaId, std::size_t> copies;
  for (const AreaId area : used) copies[area] += 1;
  std::size_t count = 0;
  for (auto at = used.rbegin(); at != used.rend() && out.size() < most.areas; ++at) {
    if (out.count(*at) > 0 || copies.at(*at) > most.copies - count) continue;
    out.insert(*at);
    count += copies.at(*at);
  }
  for (const auto& [area, block_bytes] : areas) {
    if (out.size() < most.areas && copies.count(area) == 0) out.insert(area);
  }
  HO_CHECK(count <= most.copies && out.size() <= most.areas);
  return out;
}

}  // namespace

void BlockIndex::Left::drop_areas(BlockMedium medium, const std::set<AreaId>& areas) {
  Tier& from = tier(medium);
  std::erase_if(from.areas, [&](const auto& area) { return areas.count(area.first) > 0; });
  std::erase_if(from.copies, [&](const Copy& copy) { return areas.count(copy.area) > 0; });
}

BlockIndex::Left BlockIndex::leave(const LeaveMost& flash) const {
  Left out;
  out.models = models_;
  out.tier(BlockMedium::kDdr) = leave(BlockMedium::kDdr, {});
  out.tier(BlockMedium::kFlash) = leave(BlockMedium::kFlash, flash);
  return out;
}

BlockIndex::Left::Tier BlockIndex::leave(BlockMedium medium, const LeaveMost& most) const {
  Left::Tier out;
  out.areas = tier(medium).area_sizes();
  std::vector<const Block*> stored;
  for (const auto& [key, block] : visible_) {
    if (block->ready(medium)) stored.push_back(block);
  }
  std::sort(stored.begin(), stored.end(), [medium](const Block* a, const Block* b) {
    return a->copy(medium)->used < b->copy(medium)->used;
  });
  std::vector<AreaId> used;
  used.reserve(stored.size());
  for (const Block* const block : stored) used.push_back(block->copy(medium)->area);
  const std::set<AreaId> stay = choose(out.areas, used, most);
  std::erase_if(out.areas, [&](const auto& area) { return stay.count(area.first) == 0; });
  for (const Block* const block : stored) {
    if (stay.count(block->copy(medium)->area) == 0) continue;
    const BlockCopy& copy = *block->copy(medium);
    Left::Copy to;
    to.key = block->key;
    to.checksum = block->checksum;
    to.area = copy.area;
    to.slot = copy.slot;
    to.cost = block->cost;
    to.uses = block->uses;
    to.model = block->model;
    to.worth = copy.worth - std::min(tier(medium).clock(block->length_bytes), copy.worth);
    out.copies.push_back(to);
  }
  return out;
}

Result<void> BlockIndex::adopt(const Left& left) {
  HO_CHECK(blocks_.empty() && models_.empty());
  const Error corrupt(Errc::kCorrupt, "the index of blocks contradicts itself");
  if (left.models.size() > kModelsMax) return corrupt;
  models_ = left.models;
  for (auto& [name, figures] : models_) {
    figures.blocks = figures.bytes = figures.ddr_bytes = figures.flash_bytes = 0;
  }
  for (const BlockMedium medium : kMedia) {
    HO_CHECK(areas(medium) == 0);
    for (const auto& [id, length_bytes] : left.tier(medium).areas) {
      const bool fits = length_bytes >= kBlockBytesMin && length_bytes <= area_bytes_;
      if (!fits || !tier(medium).takes(length_bytes)) return corrupt;
      tier(medium).add_area(id, length_bytes);
    }
    for (const Left::Copy& from : left.tier(medium).copies) {
      if (!adopt(from, medium)) return corrupt;
    }
  }
  // Saves ahead may evict others from flash. Those that were due began at the last daemon.
  for (const auto& [id, length_bytes] : left.tier(BlockMedium::kDdr).areas) {
    put_off_search(length_bytes);
  }
  return {};
}

/// Makes the block, or adds its copy in another tier. @return false: it contradicts what is there.
bool BlockIndex::adopt(const Left::Copy& from, BlockMedium medium) {
  if (from.cost == 0 || from.uses == 0 || from.model.value() >= models_.size()) return false;
  const auto known = visible_.find(from.key);
  const bool is_new = known == visible_.end();
  const BlockNumber number = is_new ? BlockNumber(next_block_++) : known->second->number;
  auto copy = tier(medium).take_slot(from.area, from.slot, number);
  if (!copy) return false;
  copy->worth = from.worth;
  copy->used = ++uses_;
  copy->ready = true;
  if (is_new) {
    Block block;
    block.number = number;
    block.key = from.key;
    block.state = State::kStored;
    block.cost = from.cost;
    block.uses = from.uses;
    block.model = from.model;
    block.length_bytes = copy->length_bytes;
    block.checksum = from.checksum;
    Block& made = blocks_.emplace(number, block).first->second;
    visible_.emplace(made.key, &made);
    figures_of(made).blocks += 1;
    figures_of(made).bytes += made.length_bytes;
  }
  Block& block = blocks_.at(number);
  const bool same = block.length_bytes == copy->length_bytes && block.checksum == from.checksum;
  if (!same || block.copy(medium)) return false;
  block.copy(medium) = copy;
  tier(medium).let_go(*block.copy(medium), number);
  count(block, medium, true);
  return true;
}

}  // namespace ho::daemon
