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

}  // namespace

std::size_t BlockIndex::KeyHash::operator()(const BlockKey& key) const {
  return mix(mix(key.low ^ salt) + (key.high ^ ~salt));
}

BlockIndex::BlockIndex(std::uint64_t segment_bytes, std::uint64_t salt)
    : segment_bytes_(segment_bytes), visible_(0, KeyHash{salt}), remembered_(0, KeyHash{salt}) {
  HO_CHECK(segment_bytes >= kBlockBytesMin && segment_bytes % kSlotAlign == 0);
}

ModelIndex BlockIndex::model(const std::string& name) {
  for (std::size_t i = 0; i < models_.size(); ++i) {
    if (models_[i].first == name) return ModelIndex(static_cast<std::uint32_t>(i));
  }
  if (models_.size() < kModelsMax) models_.emplace_back(name, BlockFigures{});
  return ModelIndex(static_cast<std::uint32_t>(models_.size() - 1));
}

BlockPlace BlockIndex::place_of(const Block& block) const {
  const std::uint64_t stride = align_up(block.length_bytes, kSlotAlign);
  return {block.id, block.segment, block.slot * stride, block.length_bytes, block.checksum};
}

/// Keeps the block from being evicted, for one more reason.
void BlockIndex::hold(Block& block) {
  if (block.pins++ > 0) return;
  HO_CHECK(sizes_.at(block.length_bytes).order.erase(&block) == 1);
  segments_.at(block.segment).held += 1;
}

/// Ends one reason. A block that was removed meanwhile goes with the last one.
void BlockIndex::let_go(Block& block) {
  HO_CHECK(block.pins > 0);
  if (--block.pins > 0) return;
  if (block.state == State::kLeaving) return forget(block);
  segments_.at(block.segment).held -= 1;
  HO_CHECK(sizes_.at(block.length_bytes).order.insert(&block).second);
}

/// Makes a block one of the last to be evicted. A request that pins blocks and then gets them uses
/// them once: while a block is pinned only further pins count.
void BlockIndex::use(Block& block, bool pins) {
  Size& size = sizes_.at(block.length_bytes);
  const bool ordered = block.pins == 0;
  if (ordered) HO_CHECK(size.order.erase(&block) == 1);
  if (ordered || pins) block.uses = std::min(block.uses + 1, kUsesMax);
  block.worth = size.clock + std::uint64_t{block.cost} * block.uses;
  block.used = ++uses_;
  if (ordered) HO_CHECK(size.order.insert(&block).second);
}

/// Takes a stored block out, and remembers its uses.
void BlockIndex::evict_block(Block& block) {
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

/// Returns the uses that an evicted block had, and forgets them.
std::uint32_t BlockIndex::recall(const BlockKey& key) {
  const auto found = remembered_.find(key);
  if (found == remembered_.end()) return 0;
  const std::uint32_t uses = found->second.uses;
  remembered_.erase(found);
  return uses;
}

/// A stored block is not found any more. Its slot is free, unless a pin holds it.
void BlockIndex::take_out(Block& block) {
  HO_CHECK(block.state == State::kStored);
  HO_CHECK(visible_.erase(block.key) == 1);
  BlockFigures& figures = figures_of(block);
  figures.blocks -= 1;
  figures.bytes -= block.length_bytes;
  block.state = State::kLeaving;
  if (block.pins > 0) return;
  sizes_.at(block.length_bytes).order.erase(&block);
  segments_.at(block.segment).held += 1;
  forget(block);
}

/// Frees the slot of a block that is in no order.
void BlockIndex::forget(Block& block) {
  HO_CHECK(block.pins == 0 && block.state != State::kStored);
  Segment& segment = segments_.at(block.segment);
  HO_CHECK(segment.held > 0);
  segment.held -= 1;
  segment.slots[block.slot] = nullptr;
  segment.free.push_back(block.slot);
  sizes_.at(block.length_bytes).with_room.insert(block.segment);
  if (block.state == State::kReserved) reserved_.erase(block.id);
  blocks_.erase(block.id);
}

std::optional<BlockPlace> BlockIndex::get(const BlockKey& key, ModelIndex model) {
  const auto found = visible_.find(key);
  if (found == visible_.end()) {
    models_[model.value()].second.misses += 1;
    return std::nullopt;
  }
  models_[model.value()].second.hits += 1;
  use(*found->second, false);
  return place_of(*found->second);
}

bool BlockIndex::remove(const BlockKey& key) {
  const auto found = visible_.find(key);
  if (found == visible_.end()) return false;
  take_out(*found->second);
  return true;
}

BlockIndex::Reserved BlockIndex::reserve(const Want& want, Evict evict, TimePoint now) {
  HO_CHECK(want.length_bytes >= kBlockBytesMin && want.length_bytes <= segment_bytes_);
  HO_CHECK(want.cost > 0 && want.model.value() < models_.size());
  if (const auto found = visible_.find(want.key); found != visible_.end()) {
    use(*found->second, false);
    return {Answer::kExists, {}};
  }
  const auto size = sizes_.find(want.length_bytes);
  if (size == sizes_.end()) return {};
  if (size->second.with_room.empty()) {
    if (evict == Evict::kNo || size->second.order.empty()) return {};
    Block& victim = **size->second.order.begin();
    size->second.clock = victim.worth;
    evict_block(victim);
  }
  const SegmentId id = *size->second.with_room.begin();
  Segment& segment = segments_.at(id);
  Block block;
  block.id = BlockId(next_block_++);
  block.key = want.key;
  block.segment = id;
  block.slot = segment.free.back();
  block.cost = want.cost;
  block.model = want.model;
  block.writer = want.session;
  block.since = now;
  block.length_bytes = want.length_bytes;
  segment.free.pop_back();
  if (segment.free.empty()) size->second.with_room.erase(id);
  Block& made = blocks_.emplace(block.id, block).first->second;
  segment.slots[block.slot] = &made;
  segment.held += 1;
  reserved_.insert(block.id);
  return {Answer::kReserved, place_of(made)};
}

bool BlockIndex::commit(BlockId id, SessionId session, const BlockChecksum& checksum) {
  const auto found = blocks_.find(id);
  if (found == blocks_.end()) return false;
  Block& block = found->second;
  if (block.state != State::kReserved || block.writer != session) return false;
  if (const auto other = visible_.find(block.key); other != visible_.end()) {
    use(*other->second, false);
    forget(block);
    return true;
  }
  reserved_.erase(id);
  block.state = State::kStored;
  block.checksum = checksum;
  visible_.emplace(block.key, &block);
  Size& size = sizes_.at(block.length_bytes);
  block.uses = std::min(recall(block.key) + 1, kUsesMax);
  block.worth = size.clock + std::uint64_t{block.cost} * block.uses;
  block.used = ++uses_;
  segments_.at(block.segment).held -= 1;
  HO_CHECK(size.order.insert(&block).second);
  BlockFigures& figures = figures_of(block);
  figures.blocks += 1;
  figures.bytes += block.length_bytes;
  figures.puts += 1;
  return true;
}

void BlockIndex::drop(BlockId id, SessionId session) {
  const auto found = blocks_.find(id);
  if (found == blocks_.end()) return;
  Block& block = found->second;
  if (block.state == State::kStored) return take_out(block);
  if (block.state == State::kReserved && block.writer == session) forget(block);
}

BlockIndex::Pinned BlockIndex::pin(std::span<const BlockKey> keys, ModelIndex model,
                                   SessionId session, TimePoint until) {
  Pinned out;
  Pin pin{session, until, {}};
  for (const BlockKey& key : keys) {
    const auto found = visible_.find(key);
    if (found == visible_.end()) break;
    pin.blocks.push_back(found->second->id);
  }
  out.count = pin.blocks.size();
  BlockFigures& figures = models_[model.value()].second;
  figures.hits += out.count;
  figures.misses += keys.size() - out.count;
  for (const BlockId id : pin.blocks) use(blocks_.at(id), true);
  if (pin.blocks.empty() || pins_of_[session] >= kPinsPerSessionMax) return out;
  for (const BlockId id : pin.blocks) hold(blocks_.at(id));
  out.pin = PinId(next_pin_++);
  pins_of_[session] += 1;
  pins_.emplace(out.pin, std::move(pin));
  return out;
}

void BlockIndex::end_pin(const Pin& pin) {
  for (const BlockId id : pin.blocks) let_go(blocks_.at(id));
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
  sizes_.clear();
  segments_.clear();
  blocks_.clear();
  remembered_.clear();
  evicted_.clear();
  for (auto& [name, figures] : models_) figures.blocks = figures.bytes = 0;
}

void BlockIndex::end_session(SessionId session) {
  std::vector<BlockId> reserved;
  for (const BlockId id : reserved_) {
    if (blocks_.at(id).writer == session) reserved.push_back(id);
  }
  for (const BlockId id : reserved) forget(blocks_.at(id));
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

void BlockIndex::add_segment(SegmentId id, std::uint64_t length_bytes) {
  HO_CHECK(length_bytes >= kBlockBytesMin && length_bytes <= segment_bytes_);
  Segment segment;
  segment.length_bytes = length_bytes;
  const auto slots =
      static_cast<std::uint32_t>(segment_bytes_ / align_up(length_bytes, kSlotAlign));
  segment.slots.assign(slots, nullptr);
  for (std::uint32_t slot = slots; slot > 0; --slot) segment.free.push_back(slot - 1);
  HO_CHECK(segments_.emplace(id, std::move(segment)).second);
  sizes_[length_bytes].with_room.insert(id);
}

std::optional<SegmentId> BlockIndex::coldest() const {
  // Free segments first: they cost nothing. Then by the block that was not used for longest.
  const Block* oldest = nullptr;
  for (const auto& [id, segment] : segments_) {
    if (segment.free.size() == segment.slots.size()) return id;
  }
  for (const auto& [bytes, size] : sizes_) {
    for (const Block* block : size.order) {
      if (segments_.at(block->segment).held > 0) continue;
      if (oldest == nullptr || block->used < oldest->used) oldest = block;
      break;
    }
  }
  if (oldest == nullptr) return std::nullopt;
  return oldest->segment;
}

void BlockIndex::drop_segment(SegmentId id) {
  Segment& segment = segments_.at(id);
  HO_CHECK(segment.held == 0);
  for (Block* const block : segment.slots) {
    if (block != nullptr) evict_block(*block);
  }
  const auto size = sizes_.find(segment.length_bytes);
  size->second.with_room.erase(id);
  const std::uint64_t bytes = segment.length_bytes;
  segments_.erase(id);
  const bool last = std::none_of(segments_.begin(), segments_.end(),
                                 [&](const auto& one) { return one.second.length_bytes == bytes; });
  if (last) sizes_.erase(size);
}

bool BlockIndex::takes(std::uint64_t length_bytes) const {
  if (length_bytes < kBlockBytesMin || length_bytes > segment_bytes_) return false;
  return sizes_.count(length_bytes) > 0 || sizes_.size() < kSizesMax;
}

}  // namespace ho::daemon
