// An index that passes to the next daemon.
#include <algorithm>

#include "common/base/check.hpp"
#include "daemon/blocks/block_index.hpp"

namespace ho::daemon {

BlockIndex::Left BlockIndex::leave() const {
  Left out;
  out.models = models_;
  for (const auto& [id, segment] : segments_) out.segments[id] = segment.length_bytes;
  std::vector<const Block*> stored;
  for (const auto& [key, block] : visible_) stored.push_back(block);
  std::sort(stored.begin(), stored.end(),
            [](const Block* a, const Block* b) { return a->used < b->used; });
  for (const Block* const block : stored) {
    Left::Block to;
    to.key = block->key;
    to.checksum = block->checksum;
    to.segment = block->segment;
    to.slot = block->slot;
    to.cost = block->cost;
    to.uses = block->uses;
    to.model = block->model;
    to.worth = block->worth - std::min(sizes_.at(block->length_bytes).clock, block->worth);
    out.blocks.push_back(to);
  }
  return out;
}

Result<void> BlockIndex::adopt(const Left& left) {
  HO_CHECK(blocks_.empty() && segments_.empty() && models_.empty());
  const Error corrupt(Errc::kCorrupt, "the index of blocks contradicts itself");
  if (left.models.size() > kModelsMax) return corrupt;
  models_ = left.models;
  for (auto& [name, figures] : models_) figures.blocks = figures.bytes = 0;
  for (const auto& [id, length_bytes] : left.segments) {
    if (!takes(length_bytes)) return corrupt;
    add_segment(id, length_bytes);
  }
  for (const Left::Block& from : left.blocks) {
    const auto found = segments_.find(from.segment);
    const bool fits = found != segments_.end() && from.slot < found->second.slots.size() &&
                      found->second.slots[from.slot] == nullptr && from.cost > 0 && from.uses > 0 &&
                      from.model.value() < models_.size() && !has(from.key);
    if (!fits) return corrupt;
    Block block;
    block.id = BlockId(next_block_++);
    block.key = from.key;
    block.state = State::kStored;
    block.segment = from.segment;
    block.slot = from.slot;
    block.cost = from.cost;
    block.uses = from.uses;
    block.model = from.model;
    block.length_bytes = found->second.length_bytes;
    block.checksum = from.checksum;
    block.worth = from.worth;
    block.used = ++uses_;
    Block& made = blocks_.emplace(block.id, block).first->second;
    found->second.slots[from.slot] = &made;
    visible_.emplace(made.key, &made);
    HO_CHECK(sizes_.at(made.length_bytes).order.insert(&made).second);
    figures_of(made).blocks += 1;
    figures_of(made).bytes += made.length_bytes;
  }
  for (auto& [id, segment] : segments_) {
    std::erase_if(segment.free,
                  [&slots = segment.slots](std::uint32_t slot) { return slots[slot] != nullptr; });
    if (segment.free.empty()) sizes_.at(segment.length_bytes).with_room.erase(id);
  }
  return {};
}

}  // namespace ho::daemon
