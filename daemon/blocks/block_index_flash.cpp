// Blocks that are saved to flash and come back. The caller moves the bytes.
#include <algorithm>

#include "common/base/check.hpp"
#include "daemon/blocks/block_index.hpp"

namespace ho::daemon {

namespace {

constexpr auto kDdr = BlockMedium::kDdr;
constexpr auto kFlash = BlockMedium::kFlash;

}  // namespace

std::uint64_t BlockIndex::ahead(std::uint64_t length_bytes) const {
  return std::min(tier(kDdr).slots(length_bytes) / kAheadShare + 1, kAheadMax);
}

std::vector<BlockNumber> BlockIndex::unsaved(std::uint64_t length_bytes, std::size_t limit) {
  const BlockTier& ddr = tier(kDdr);
  const std::uint64_t room = ddr.free_slots(length_bytes);
  const std::uint64_t wanted = ahead(length_bytes);
  const std::uint64_t taken = ddr.taken(length_bytes);
  std::uint64_t& search_at = search_at_[length_bytes];
  if (search_at > taken + wanted) search_at = 0;  // the size had been forgotten
  if (room >= wanted || taken < search_at) return {};
  std::vector<BlockNumber> out =
      ddr.among_next(length_bytes, wanted - room, limit,
                     [&](BlockNumber one) { return !blocks_.at(one).copy(kFlash).has_value(); });
  if (out.empty()) put_off_search(length_bytes);
  return out;
}

void BlockIndex::put_off_search(std::uint64_t length_bytes) {
  const std::uint64_t more = std::max<std::uint64_t>(1, ahead(length_bytes) / kSearchShare);
  search_at_[length_bytes] = tier(kDdr).taken(length_bytes) + more;
}

BlockIndex::Move BlockIndex::move_of(const Block& block) const {
  const BlockCopy& ddr = *block.copy(kDdr);
  const BlockCopy& flash = *block.copy(kFlash);
  return {block.number,
          ddr.area,
          BlockTier::offset_of(ddr),
          flash.area,
          BlockTier::offset_of(flash),
          BlockTier::slot_bytes(block.length_bytes)};
}

std::optional<BlockIndex::Move> BlockIndex::save(BlockNumber number, Evict evict) {
  Block& block = blocks_.at(number);
  HO_CHECK(block.state == State::kStored && block.ready(kDdr) && !block.copy(kFlash));
  hold(block);  // making room must not evict it
  if (!make_room(kFlash, block.length_bytes, evict)) {
    let_go(block);
    return std::nullopt;
  }
  block.copy(kFlash) = tier(kFlash).take(block.length_bytes, number);
  return move_of(block);
}

void BlockIndex::saved(BlockNumber number, bool done) {
  Block& block = blocks_.at(number);
  if (done && block.state == State::kStored) make_ready(block, kFlash);
  if (!done) drop_copy(block, kFlash);
  let_go(block);
}

bool BlockIndex::is_pinned_on_flash(BlockNumber number) const {
  const auto found = blocks_.find(number);
  if (found == blocks_.end()) return false;
  const Block& block = found->second;
  return block.state == State::kStored && block.pins > 0 && block.ready(kFlash) &&
         !block.copy(kDdr);
}

BlockIndex::Load BlockIndex::load(BlockNumber number, Victim victim) {
  const auto found = blocks_.find(number);
  if (found == blocks_.end() || found->second.state != State::kStored) return {};
  Block& block = found->second;
  const std::uint64_t length_bytes = block.length_bytes;
  HO_CHECK(block.ready(kFlash) && !block.copy(kDdr));
  hold(block);
  bool room = tier(kDdr).has_room(length_bytes);
  if (!room && victim == Victim::kSaved) {
    const auto saved =
        tier(kDdr).among_next(length_bytes, ahead(length_bytes), 1,
                              [&](BlockNumber one) { return blocks_.at(one).ready(kFlash); });
    if (!saved.empty()) give_up(saved.front(), kDdr);
    if (saved.empty()) search_at_.erase(length_bytes);  // saves are wanted at once
    room = !saved.empty();
  }
  if (!room && victim == Victim::kAny) room = make_room(kDdr, length_bytes, Evict::kYes);
  if (!room) {
    let_go(block);
    return {Load::Answer::kNoRoom, {}, length_bytes};
  }
  block.copy(kDdr) = tier(kDdr).take(length_bytes, number);
  if (block.pins > 0) pinned_ddr_bytes_ += length_bytes;
  block.stays += 1;
  return {Load::Answer::kBegun, move_of(block), length_bytes};
}

std::optional<BlockPlace> BlockIndex::loaded(BlockNumber number, Loaded how) {
  Block& block = blocks_.at(number);
  std::optional<BlockPlace> place;
  if (block.state == State::kStored) {
    switch (how) {
      case Loaded::kDone:
        make_ready(block, kDdr);
        place = place_of(block);
        break;
      case Loaded::kNotNow: drop_copy(block, kDdr); break;
      case Loaded::kLost: take_out(block); break;
    }
  }
  let_go(block);
  return place;
}

void BlockIndex::count_load(ModelIndex model, BlockNumber block, bool hit) {
  if (hit && blocks_.at(block).pins > 0) return;  // the match counted it
  BlockFigures& figures = models_[model.value()].second;
  figures.hits += hit ? 1 : 0;
  figures.flash_hits += hit ? 1 : 0;
  figures.misses += hit ? 0 : 1;
}

}  // namespace ho::daemon
