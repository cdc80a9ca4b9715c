// An index that passes to the next daemon.
#include <algorithm>

#include "common/base/check.hpp"
#include "daemon/blocks/block_index.hpp"

namespace ho::daemon {

BlockIndex::Left BlockIndex::leave() const {
  const BlockTier& ddr = tier(BlockMedium::kDdr);
  Left out;
  out.models = models_;
  for (const auto& [id, length_bytes] : ddr.area_sizes()) {
    out.segments[SegmentId(id.value())] = length_bytes;
  }
  std::vector<const Block*> stored;
  for (const auto& [key, block] : visible_) {
    if (block->ready(BlockMedium::kDdr)) stored.push_back(block);
  }
  std::sort(stored.begin(), stored.end(), [](const Block* a, const Block* b) {
    return a->copy(BlockMedium::kDdr)->used < b->copy(BlockMedium::kDdr)->used;
  });
  for (const Block* const block : stored) {
    const BlockCopy& copy = *block->copy(BlockMedium::kDdr);
    Left::Block to;
    to.key = block->key;
    to.checksum = block->checksum;
    to.segment = SegmentId(copy.area.value());
    to.slot = copy.slot;
    to.cost = block->cost;
    to.uses = block->uses;
    to.model = block->model;
    to.worth = copy.worth - std::min(ddr.clock(block->length_bytes), copy.worth);
    out.blocks.push_back(to);
  }
  return out;
}

Result<void> BlockIndex::adopt(const Left& left) {
  BlockTier& ddr = tier(BlockMedium::kDdr);
  HO_CHECK(blocks_.empty() && ddr.areas() == 0 && models_.empty());
  const Error corrupt(Errc::kCorrupt, "the index of blocks contradicts itself");
  if (left.models.size() > kModelsMax) return corrupt;
  models_ = left.models;
  for (auto& [name, figures] : models_) {
    figures.blocks = figures.bytes = figures.ddr_bytes = figures.flash_bytes = 0;
  }
  for (const auto& [id, length_bytes] : left.segments) {
    if (!takes(length_bytes)) return corrupt;
    ddr.add_area(AreaId(id.value()), length_bytes);
  }
  for (const Left::Block& from : left.blocks) {
    const bool fits =
        from.cost > 0 && from.uses > 0 && from.model.value() < models_.size() && !has(from.key);
    if (!fits) return corrupt;
    Block block;
    block.number = BlockNumber(next_block_++);
    auto copy = ddr.take_slot(AreaId(from.segment.value()), from.slot, block.number);
    if (!copy) return corrupt;
    copy->worth = from.worth;
    copy->used = ++uses_;
    copy->ready = true;
    block.key = from.key;
    block.state = State::kStored;
    block.cost = from.cost;
    block.uses = from.uses;
    block.model = from.model;
    block.length_bytes = copy->length_bytes;
    block.checksum = from.checksum;
    block.copy(BlockMedium::kDdr) = copy;
    Block& made = blocks_.emplace(block.number, block).first->second;
    visible_.emplace(made.key, &made);
    ddr.let_go(*made.copy(BlockMedium::kDdr), made.number);
    figures_of(made).blocks += 1;
    figures_of(made).bytes += made.length_bytes;
    count(made, BlockMedium::kDdr, true);
  }
  return {};
}

}  // namespace ho::daemon
