#include "daemon/blocks/block_index.hpp"

#include <algorithm>
#include <utility>

#include "common/base/check.hpp"

namespace ho::daemon {

namespace {

/// splitmix64's mixing step.
std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30U)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27U)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31U);
}

/// A BlockId is a block's number and how often it had come to DDR before.
constexpr unsigned kStayBits = 20;
constexpr std::uint64_t kStayMask = (1U << kStayBits) - 1;

}  // namespace

BlockFigures& BlockFigures::operator+=(const BlockFigures& other) {
  blocks += other.blocks;
  bytes += other.bytes;
  ddr_bytes += other.ddr_bytes;
  flash_bytes += other.flash_bytes;
  hits += other.hits;
  flash_hits += other.flash_hits;
  misses += other.misses;
  puts += other.puts;
  evictions += other.evictions;
  return *this;
}

std::size_t BlockIndex::KeyHash::operator()(const BlockKey& key) const {
  return mix(mix(key.low ^ salt) + (key.high ^ ~salt));
}

BlockIndex::BlockIndex(std::uint64_t area_bytes, std::uint64_t salt)
    : area_bytes_(area_bytes),
      tiers_{BlockTier(area_bytes), BlockTier(area_bytes)},
      visible_(0, KeyHash{salt}),
      remembered_(0, KeyHash{salt}) {
  HO_CHECK(area_bytes >= kBlockBytesMin && area_bytes % BlockTier::kSlotAlign == 0);
}

ModelIndex BlockIndex::model(const std::string& name) {
  for (std::size_t i = 0; i < models_.size(); ++i) {
    if (models_[i].first == name) return ModelIndex(static_cast<std::uint32_t>(i));
  }
  if (models_.size() < kModelsMax) models_.emplace_back(name, BlockFigures{});
  return ModelIndex(static_cast<std::uint32_t>(models_.size() - 1));
}

BlockPlace BlockIndex::place_of(const Block& block) const {
  const BlockCopy& copy = *block.copy(BlockMedium::kDdr);
  return {BlockId(block.number.value() << kStayBits | (block.stays & kStayMask)),
          SegmentId(copy.area.value()), BlockTier::offset_of(copy), block.length_bytes,
          block.checksum};
}

/// The block, if this is still its stay in DDR.
BlockIndex::Block* BlockIndex::find(BlockId id) {
  const auto found = blocks_.find(BlockNumber(id.value() >> kStayBits));
  if (found == blocks_.end()) return nullptr;
  Block& block = found->second;
  if (!block.copy(BlockMedium::kDdr)) return nullptr;
  return (block.stays & kStayMask) == (id.value() & kStayMask) ? &block : nullptr;
}

/// Keeps the block from being evicted, for one more reason.
void BlockIndex::hold(Block& block) {
  if (block.holds++ > 0) return;
  for (const BlockMedium medium : kMedia) {
    if (block.ready(medium)) tier(medium).hold(*block.copy(medium), block.number);
  }
}

/// Ends one reason. A block that was removed meanwhile goes with the last one.
void BlockIndex::let_go(Block& block) {
  HO_CHECK(block.holds > 0);
  if (--block.holds > 0) return;
  if (block.state == State::kLeaving) return forget(block);
  for (const BlockMedium medium : kMedia) {
    if (block.ready(medium)) tier(medium).let_go(*block.copy(medium), block.number);
  }
}

/// Makes a block one of the last to be evicted. A request that pins blocks and then gets them uses
/// them once: while a block is pinned only further pins count.
void BlockIndex::use(Block& block, bool pins) {
  if (block.pins == 0 || pins) block.uses = std::min(block.uses + 1, kUsesMax);
  const std::uint64_t weight = std::uint64_t{block.cost} * block.uses;
  ++uses_;
  for (const BlockMedium medium : kMedia) {
    if (block.ready(medium)) tier(medium).use(*block.copy(medium), block.number, weight, uses_);
  }
}

/// The block, which is held, has all its bytes in this medium.
void BlockIndex::make_ready(Block& block, BlockMedium medium) {
  HO_CHECK(block.holds > 0 && block.state == State::kStored);
  BlockCopy& copy = *block.copy(medium);
  copy.ready = true;
  tier(medium).use(copy, block.number, std::uint64_t{block.cost} * block.uses, ++uses_);
  count(block, medium, true);
}

void BlockIndex::count(const Block& block, BlockMedium medium, bool more) {
  BlockFigures& figures = figures_of(block);
  std::uint64_t& bytes = medium == BlockMedium::kDdr ? figures.ddr_bytes : figures.flash_bytes;
  bytes = more ? bytes + block.length_bytes : bytes - block.length_bytes;
}

/// Takes a stored block out of one medium. It has a copy in the other one.
void BlockIndex::drop_copy(Block& block, BlockMedium medium) {
  BlockCopy& copy = *block.copy(medium);
  if (copy.may_go) tier(medium).hold(copy, block.number);
  if (copy.ready) count(block, medium, false);
  if (medium == BlockMedium::kDdr && block.pins > 0) pinned_ddr_bytes_ -= block.length_bytes;
  tier(medium).give_back(copy);
  block.copy(medium).reset();
}

/// Takes a copy out; the block goes with its last one, and its uses are remembered.
void BlockIndex::evict(Block& block, BlockMedium medium) {
  const BlockMedium other = medium == BlockMedium::kDdr ? BlockMedium::kFlash : BlockMedium::kDdr;
  if (block.ready(other)) return drop_copy(block, medium);
  figures_of(block).evictions += 1;
  remembered_[block.key] = {block.uses, ++evictions_};
  evicted_.emplace_back(evictions_, block.key);
  take_out(block);
  while (evicted_.size() > kRememberedPerBlock * blocks_.size() + 1) {
    const auto& [number, key] = evicted_.front();
    const auto found = remembered_.find(key);
    if (found != remembered_.end() && found->second.number == number) remembered_.erase(found);
    evicted_.pop_front();
  }
}

/// @return whether a slot is free.
bool BlockIndex::make_room(BlockMedium medium, std::uint64_t length_bytes, Evict evict) {
  BlockTier& of = tier(medium);
  if (of.has_room(length_bytes)) return true;
  const auto victim = evict == Evict::kYes ? of.cheapest(length_bytes) : std::nullopt;
  if (!victim) return false;
  give_up(*victim, medium);
  return true;
}

/// Evicts a copy because its slot is wanted: the tier's other copies are worth less from now on.
void BlockIndex::give_up(BlockNumber victim, BlockMedium medium) {
  Block& block = blocks_.at(victim);
  tier(medium).note_evicted(*block.copy(medium));
  evict(block, medium);
}

/// Returns the uses that an evicted block had, and forgets them.
std::uint32_t BlockIndex::recall(const BlockKey& key) {
  const auto found = remembered_.find(key);
  if (found == remembered_.end()) return 0;
  const std::uint32_t uses = found->second.uses;
  remembered_.erase(found);
  return uses;
}

/// A stored block is not found any more. Its slots are free, unless it is held.
void BlockIndex::take_out(Block& block) {
  HO_CHECK(block.state == State::kStored);
  HO_CHECK(visible_.erase(block.key) == 1);
  BlockFigures& figures = figures_of(block);
  figures.blocks -= 1;
  figures.bytes -= block.length_bytes;
  block.state = State::kLeaving;
  for (const BlockMedium medium : kMedia) {
    if (block.ready(medium)) count(block, medium, false);
  }
  if (block.holds == 0) forget(block);
}

/// Frees the slots of a block that is not stored any more.
void BlockIndex::forget(Block& block) {
  HO_CHECK(block.pins == 0 && block.state != State::kStored);
  for (const BlockMedium medium : kMedia) {
    auto& copy = block.copy(medium);
    if (!copy) continue;
    if (copy->may_go) tier(medium).hold(*copy, block.number);
    tier(medium).give_back(*copy);
  }
  if (block.state == State::kReserved) reserved_.erase(block.number);
  blocks_.erase(block.number);
}

std::optional<BlockIndex::Found> BlockIndex::get(const BlockKey& key, ModelIndex model) {
  const auto found = visible_.find(key);
  if (found == visible_.end()) {
    models_[model.value()].second.misses += 1;
    return std::nullopt;
  }
  Block& block = *found->second;
  use(block, false);
  if (!block.ready(BlockMedium::kDdr)) return Found{block.number, std::nullopt};
  if (block.pins == 0) models_[model.value()].second.hits += 1;  // else the match counted it
  return Found{block.number, place_of(block)};
}

bool BlockIndex::remove(const BlockKey& key) {
  const auto found = visible_.find(key);
  if (found == visible_.end()) return false;
  take_out(*found->second);
  return true;
}

BlockIndex::Reserved BlockIndex::reserve(const Want& want, Evict evict, TimePoint now) {
  HO_CHECK(want.length_bytes >= kBlockBytesMin && want.cost > 0);
  HO_CHECK(want.model.value() < models_.size());
  const auto found = visible_.find(want.key);
  if (found != visible_.end() && found->second->length_bytes == want.length_bytes) {
    use(*found->second, false);
    return {Answer::kExists, {}};
  }
  if (!make_room(BlockMedium::kDdr, want.length_bytes, evict)) return {};
  Block block;
  block.number = BlockNumber(next_block_++);
  block.key = want.key;
  block.cost = want.cost;
  block.model = want.model;
  block.writer = want.session;
  block.since = now;
  block.length_bytes = want.length_bytes;
  block.copy(BlockMedium::kDdr) = tier(BlockMedium::kDdr).take(want.length_bytes, block.number);
  const Block& made = blocks_.emplace(block.number, block).first->second;
  reserved_.insert(block.number);
  return {Answer::kReserved, place_of(made)};
}

bool BlockIndex::commit(BlockId id, SessionId session, const BlockChecksum& checksum) {
  Block* const block = find(id);
  if (block == nullptr || block->state != State::kReserved || block->writer != session) {
    return false;
  }
  if (const auto other = visible_.find(block->key); other != visible_.end()) {
    if (other->second->length_bytes == block->length_bytes) {
      use(*other->second, false);
      forget(*block);
      return true;
    }
    take_out(*other->second);  // no get of this size would find it
  }
  reserved_.erase(block->number);
  block->state = State::kStored;
  block->checksum = checksum;
  block->uses = std::min(recall(block->key) + 1, kUsesMax);
  visible_.emplace(block->key, block);
  BlockFigures& figures = figures_of(*block);
  figures.blocks += 1;
  figures.bytes += block->length_bytes;
  figures.puts += 1;
  block->holds = 1;
  make_ready(*block, BlockMedium::kDdr);
  let_go(*block);
  return true;
}

void BlockIndex::drop(BlockId id, SessionId session) {
  Block* const block = find(id);
  if (block == nullptr) return;
  if (block->state == State::kStored) return take_out(*block);
  if (block->state == State::kReserved && block->writer == session) forget(*block);
}

BlockIndex::Pinned BlockIndex::pin(std::span<const BlockKey> keys, ModelIndex model,
                                   SessionId session, TimePoint until) {
  Pinned out;
  Pin pin{session, until, {}};
  for (const BlockKey& key : keys) {
    const auto found = visible_.find(key);
    if (found == visible_.end()) break;
    pin.blocks.push_back(found->second->number);
  }
  out.count = pin.blocks.size();
  BlockFigures& figures = models_[model.value()].second;
  figures.hits += out.count;
  figures.misses += keys.size() - out.count;
  for (const BlockNumber number : pin.blocks) {
    Block& block = blocks_.at(number);
    if (!block.ready(BlockMedium::kDdr)) figures.flash_hits += 1;
    use(block, true);
  }
  if (pin.blocks.empty() || pins_of_[session] >= kPinsPerSessionMax) return out;
  for (const BlockNumber number : pin.blocks) {
    Block& block = blocks_.at(number);
    block.pins += 1;
    hold(block);
    const bool in_ddr = block.copy(BlockMedium::kDdr).has_value();
    if (!in_ddr) out.on_flash.push_back(number);
    if (in_ddr && block.pins == 1) pinned_ddr_bytes_ += block.length_bytes;
  }
  out.pin = PinId(next_pin_++);
  pins_of_[session] += 1;
  pins_.emplace(out.pin, std::move(pin));
  return out;
}

void BlockIndex::end_pin(const Pin& pin) {
  for (const BlockNumber number : pin.blocks) {
    Block& block = blocks_.at(number);
    block.pins -= 1;
    if (block.pins == 0 && block.copy(BlockMedium::kDdr)) pinned_ddr_bytes_ -= block.length_bytes;
    let_go(block);
  }
  const auto of = pins_of_.find(pin.session);
  if (--of->second == 0) pins_of_.erase(of);
}

void BlockIndex::unpin(PinId pin, SessionId session) {
  const auto found = pins_.find(pin);
  if (found == pins_.end() || found->second.session != session) return;
  end_pin(found->second);
  pins_.erase(found);
}

void BlockIndex::clear() {
  visible_.clear();
  reserved_.clear();
  pins_.clear();
  pins_of_.clear();
  for (BlockTier& one : tiers_) one = BlockTier(area_bytes_);
  blocks_.clear();
  search_at_.clear();
  remembered_.clear();
  evicted_.clear();
  for (auto& [name, figures] : models_) {
    figures.blocks = figures.bytes = figures.ddr_bytes = figures.flash_bytes = 0;
  }
}

void BlockIndex::end_session(SessionId session) {
  std::vector<BlockNumber> reserved;
  for (const BlockNumber number : reserved_) {
    if (blocks_.at(number).writer == session) reserved.push_back(number);
  }
  for (const BlockNumber number : reserved) forget(blocks_.at(number));
  for (auto at = pins_.begin(); at != pins_.end();) {
    if (at->second.session != session) {
      ++at;
      continue;
    }
    end_pin(at->second);
    at = pins_.erase(at);
  }
  pins_of_.erase(session);
}

void BlockIndex::tick(TimePoint now) {
  std::erase_if(search_at_, [this](const auto& size) {
    return tier(BlockMedium::kDdr).slots(size.first) == 0;
  });
  while (!reserved_.empty()) {
    Block& oldest = blocks_.at(*reserved_.begin());
    if (now - oldest.since < kReservationMax) break;
    forget(oldest);
  }
  for (auto at = pins_.begin(); at != pins_.end();) {
    if (at->second.until > now) {
      ++at;
      continue;
    }
    end_pin(at->second);
    at = pins_.erase(at);
  }
}

void BlockIndex::add_area(BlockMedium medium, AreaId area, std::uint64_t length_bytes) {
  HO_CHECK(length_bytes >= kBlockBytesMin);
  tier(medium).add_area(area, length_bytes);
}

void BlockIndex::drop_area(BlockMedium medium, AreaId area) {
  for (const BlockNumber number : tier(medium).blocks_of(area)) {
    Block& block = blocks_.at(number);
    HO_CHECK(block.holds == 0 && block.state == State::kStored);
    evict(block, medium);
  }
  tier(medium).remove_area(area);
}

bool BlockIndex::takes(std::uint64_t length_bytes) const {
  if (length_bytes < kBlockBytesMin || length_bytes > area_bytes_) return false;
  return tier(BlockMedium::kDdr).takes(length_bytes);
}

}  // namespace ho::daemon
