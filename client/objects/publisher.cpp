#include "client/objects/publisher.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/checksum.hpp"
#include "common/base/log.hpp"
#include "common/base/units.hpp"

namespace ho::client {

namespace {

constexpr std::uint64_t kTileAlign = 64;
constexpr std::uint64_t kSlotAlign = 4096;
/// A reader finds a version and opens it with two requests.
constexpr Duration kFoundFor = 2 * kControlTimeout;

}  // namespace

Publisher::Publisher(Pool& pool, const Options& options)
    : pool_(pool), options_(options), memory_(pool), bounce_(pool) {}

Publisher::~Publisher() {
  if (leaves_) pool_.leavers().remove(*this);
  if (listener_ != 0) pool_.end_listening(listener_);
  if (manifest_handles_) pool_.unregister_memory(*manifest_handles_);
  for (OldRing& old : old_) pool_.release(std::move(old.ring.arena));
  pool_.release(std::move(ring_.arena));
}

Result<std::unique_ptr<Publisher>> Publisher::create(Pool& pool, const Options& options) {
  HO_CHECK(options.tensors.size() == options.memory.size());
  if (options.versions == 0 || options.versions > kVersionsMax) {
    return Error(Errc::kInvalidArgument, "versions: 1 to 1024");
  }
  if (options.run == 0) {
    return Error(Errc::kInvalidArgument,
                 "run is 0: ranks of a program share one number, which no other run has");
  }
  std::unique_ptr<Publisher> made(new Publisher(pool, options));
  if (auto ok = made->lay_out(); !ok) return ok.error();
  if (auto ok = made->allocate(); !ok) return ok.error();
  return made;
}

Pool::Need Publisher::need_of(Pool& pool, const Options& options) {
  Publisher laid_out(pool, options);
  if (!laid_out.lay_out()) return {};
  return {.ddr_whole_bytes = laid_out.slot_bytes_ * options.versions};
}

/// Gives each tile of this rank its place in a slot.
Result<void> Publisher::lay_out() {
  const auto mesh = layout::parse_mesh(options_.mesh);
  if (!mesh) return mesh.error();
  const auto position = position_of(*mesh, options_.rank);
  if (!position) return position.error();
  parts_ = static_cast<std::uint32_t>(mesh->ranks.size());
  manifest_.mesh = options_.mesh;
  manifest_.part = static_cast<std::uint32_t>(*position);
  manifest_.chunking = options_.chunking;
  manifest_.tensors = options_.tensors;
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < options_.tensors.size(); ++i) {
    const ObjectTensor& tensor = options_.tensors[i];
    if (tensor.name.empty()) return Error(Errc::kInvalidArgument, "a tensor has no name");
    if (!names.insert(tensor.name).second) {
      return Error(Errc::kInvalidArgument, "two tensors have the name \"" + tensor.name + "\"");
    }
    const auto placement = placement_of(*mesh, tensor);
    if (!placement) return placement.error();
    const auto boxes = layout::regions(placement->mesh, placement->layout, tensor.shape);
    if (!boxes) return boxes.error().at(tensor.name);
    const layout::Box& box = (*boxes)[*position];
    const std::uint64_t bytes = box.elements() * tensor.element_bytes;
    if (options_.in_turns) count_stored(*placement, *boxes, tensor.element_bytes);
    tiles_.push_back({box, ChunkGrid(box, tensor.element_bytes, options_.chunking)});
    if (bytes != options_.memory[i].bytes) {
      return Error(Errc::kInvalidArgument, tensor.name + ": rank " + std::to_string(options_.rank) +
                                               " has " + std::to_string(bytes) +
                                               " bytes of it, the memory " +
                                               std::to_string(options_.memory[i].bytes));
    }
    ObjectTile& tile = manifest_.tiles.emplace_back();
    // Equal tiles are stored once.
    const bool stored = holder_of(*placement, *position) == *position;
    ObjectMemory memory = options_.memory[i];
    if (!stored) memory.bytes = 0;
    if (auto ok = memory_.add(memory); !ok) return ok.error().at(tensor.name);
    if (!stored) continue;
    tile.offset_bytes = tiles_bytes_;
    tile.checksums.resize(tiles_.back().chunks.size());
    if (!tiles_.back().chunks.in_order()) {
      if (auto ok = bounce_.prepare(); !ok) return ok;
    }
    tiles_bytes_ = align_up(tiles_bytes_ + bytes, kTileAlign);
  }
  description_ = description_of(options_.mesh, options_.tensors, options_.chunking);
  manifest_bytes_ = write_manifest(manifest_).size();
  slot_bytes_ = align_up(tiles_bytes_ + manifest_bytes_, kSlotAlign);
  return {};
}

/// Adds what the ranks up to this one store of a tensor.
void Publisher::count_stored(const layout::Placement& placement,
                             const std::vector<layout::Box>& boxes, std::uint64_t element_bytes) {
  stored_bytes_.resize(manifest_.part + 1);
  for (std::size_t i = 0; i < stored_bytes_.size(); ++i) {
    if (holder_of(placement, i) == i) stored_bytes_[i] += boxes[i].elements() * element_bytes;
  }
}

/// The first node to ask for memory, of so many. With Options::in_turns each rank's part is for the
/// node that has the fewest bytes of the ranks before: the ranks that store much may be every
/// second or fourth one, which would all have the same node by rank alone.
std::size_t Publisher::first_node(std::size_t nodes) const {
  if (!options_.in_turns) return options_.rank % nodes;
  std::vector<std::uint64_t> bytes(nodes);
  auto least = bytes.begin();
  for (const std::uint64_t stored : stored_bytes_) {
    least = std::min_element(bytes.begin(), bytes.end());
    *least += align_up(stored + 1, kSlotAlign);  // a manifest in any case
  }
  return static_cast<std::size_t>(least - bytes.begin());
}

Result<void> Publisher::allocate() {
  manifest_buffer_.resize(manifest_bytes_);
  auto handles = pool_.register_memory(manifest_buffer_);
  if (!handles) return handles.error();
  manifest_handles_ = *handles;
  auto ring = take_ring(pool_.nodes_of(Nearness::kAny));
  if (!ring) return ring.error();
  ring_ = std::move(*ring);
  for (std::uint32_t i = 0; i < options_.versions; ++i) {
    slots_.emplace_back().offset_bytes = i * slot_bytes_;
  }
  told_ = pool_.nodes()[ring_.node.value()].control();
  listen();
  // A reservation is one node's.
  leaves_ = !options_.exclusive;
  if (leaves_) pool_.leavers().add(*this);
  return {};
}

void Publisher::listen() {
  listener_ = pool_.listen(ring_.node, [this] {
    const std::lock_guard lock(mutex_);
    announce_again();
  });
}

/// Takes the ring's memory on one node: one of this machine's, else of others, ranks in turns; or
/// of all in turns, by bytes.
Result<Publisher::Ring> Publisher::take_ring(const std::vector<NodeIndex>& nodes) {
  std::vector<NodeIndex> order = nodes;
  const auto far = std::stable_partition(order.begin(), order.end(), [&](NodeIndex node) {
    return !options_.in_turns && pool_.nodes()[node.value()].driver == "local";
  });
  if (far != order.end()) {
    const auto others = static_cast<std::size_t>(order.end() - far);
    std::rotate(far, far + static_cast<std::ptrdiff_t>(first_node(others)), order.end());
  }
  Error last(Errc::kUnavailable, "no node of the pool is left");
  std::optional<Error> full;
  for (const NodeIndex node : order) {
    auto arena = pool_.allocate_on(node, slot_bytes_ * options_.versions);
    if (!arena) {
      last = arena.error();
      if (last.code() == Errc::kExhausted) full = last;
      continue;
    }
    if ((*arena)->segments.size() > kObjectSegmentsMax) {
      pool_.release(std::move(*arena));
      return Error(Errc::kInvalidArgument, "the versions need more than 4096 segments");
    }
    return Ring{std::move(*arena), node};
  }
  if (!full) return last;
  return Error(Errc::kExhausted, options_.name + ": no node that answered gives memory for " +
                                     std::to_string(options_.versions) + " versions of " +
                                     format_bytes(slot_bytes_) +
                                     "; the last one: " + full->context());
}

/// Takes the versions to another node: readers find them there before they are dropped here.
Result<Leaver::Left> Publisher::leave_drained() {
  const std::unique_lock busy(busy_, std::try_to_lock);
  if (!busy) return Left::kUsed;
  drop_old();
  if (!pool_.is_drained(ring_.node)) return old_.empty() ? Left::kNothing : Left::kUsed;
  // Memory of a move that failed is given back before the next try takes more.
  for (const OldRing& old : old_) {
    if (!pool_.is_drained(old.ring.node)) return Left::kUsed;
  }
  const auto nodes = pool_.nodes_that_stay();
  if (nodes.empty()) return Error(Errc::kExhausted, "all other nodes are lost or drained");
  auto ring = take_ring(nodes);
  if (!ring) return ring.error();
  pool_.end_listening(listener_);  // from here on no other thread announces
  std::vector<ObjectPartId> announced;
  const auto moved = move_to(*ring, announced);
  old_.push_back({std::move(*ring), std::move(announced), clock_.now() + kFoundFor});
  listen();
  {
    // A daemon that was restarted meanwhile told no listener.
    const std::lock_guard lock(mutex_);
    announce_again();
  }
  if (!moved) return moved.error();
  return Left::kMoved;
}

/// @param ring       is the old one afterwards; as it was on an error.
/// @param announced  the versions that `ring` has for readers afterwards, or may have.
Result<void> Publisher::move_to(Ring& ring, std::vector<ObjectPartId>& announced) {
  const NodeSession& there = pool_.nodes()[ring.node.value()];
  const auto to = there.control();
  std::vector<SegmentId> segments;
  for (const HeldSegment& held : ring.arena->segments) segments.push_back(held.segment.id);
  for (const Slot& slot : slots_) {
    if (!slot.announced) continue;
    ObjectPart part = slot.part;
    part.segments = segments;
    auto ok = pool_.copy(ring_.arena->map, slot.offset_bytes, ring.arena->map, slot.offset_bytes,
                         part.length_bytes);
    if (!ok) return ok;
    announced.push_back(part.id);
    ok = to->object_publish(there.session, options_.secret, part, clock_.now() + kControlTimeout);
    if (!ok) return ok;
  }
  const std::lock_guard lock(mutex_);
  for (Slot& slot : slots_) {
    slot.heard = slot.announced;
    slot.part.segments = segments;
  }
  told_ = to;
  std::swap(ring_, ring);
  return {};
}

/// Drops old copies that no reader has open, once every reader that asks finds the others.
void Publisher::drop_old() {
  {
    const std::lock_guard lock(mutex_);
    if (told_ == nullptr) return;  // these may be the only ones
  }
  for (OldRing& old : old_) {
    if (clock_.now() < old.found_until) continue;
    const NodeSession& node = pool_.nodes()[old.ring.node.value()];
    while (!old.versions.empty() && !pool_.is_lost(old.ring.node)) {
      const auto dropped = node.control()->object_drop(
          node.session, options_.secret, old.versions.back(), clock_.now() + kControlTimeout);
      if (!dropped && dropped.error().code() != Errc::kNotFound) break;
      old.versions.pop_back();
    }
    if (old.versions.empty() || pool_.is_lost(old.ring.node)) {
      pool_.release(std::move(old.ring.arena));
    }
  }
  std::erase_if(old_, [](const OldRing& old) { return old.ring.arena == nullptr; });
}

Result<void> Publisher::announce(const ObjectPart& part) {
  const NodeSession& node = pool_.nodes()[ring_.node.value()];
  return told_->object_publish(node.session, options_.secret, part, clock_.now() + kControlTimeout);
}

/// Asks for a version in the whole pool, where that is wanted.
Result<void> Publisher::reserve(const ObjectPartId& id) {
  if (!options_.exclusive) return {};
  const NodeSession& node = pool_.nodes()[ring_.node.value()];
  return told_->object_claim(node.session, options_.secret, id, clock_.now() + kControlTimeout);
}

/// A daemon that took over from the last one has the bytes, and does not know the versions. If it
/// does not answer, the next restart or the next publish() tries again.
void Publisher::announce_again() {
  auto now = pool_.await_control(ring_.node);
  if (now == told_) return;
  told_ = std::move(now);
  bool reserves = options_.exclusive;
  for (Slot& slot : slots_) {
    if (!slot.announced) continue;
    const auto again = announce(slot.part);
    slot.heard = again || again.error().code() == Errc::kAlreadyExists;
    // A published version stays, whether it can be reserved again or not.
    if (slot.heard && reserves) {
      const auto reserved = reserve(slot.part.id);
      reserves = reserved || reserved.error().code() == Errc::kAlreadyExists;
    }
    if (slot.heard) continue;
    const bool silent =
        again.error().code() == Errc::kUnavailable || again.error().code() == Errc::kDeadline;
    if (silent) {
      told_ = nullptr;
      return;
    }
    slot.announced = false;
    log(LogLevel::kWarning, "a version of an object ended with its node's daemon",
        {{"object", options_.name},
         {"version", std::to_string(slot.part.id.version)},
         {"reason", again.error().message()}});
  }
}

Result<Publisher::Slot*> Publisher::free_slot() {
  const NodeSession& node = pool_.nodes()[ring_.node.value()];
  std::vector<Slot*> order;
  for (Slot& slot : slots_) {
    if (!slot.announced) return &slot;
    order.push_back(&slot);
  }
  std::sort(order.begin(), order.end(),
            [](const Slot* a, const Slot* b) { return a->part.id.version < b->part.id.version; });
  for (Slot* const slot : order) {
    const auto dropped = told_->object_drop(node.session, options_.secret, slot->part.id,
                                            clock_.now() + kControlTimeout);
    if (dropped || dropped.error().code() == Errc::kNotFound) {
      slot->announced = false;
      return slot;
    }
    if (dropped.error().code() != Errc::kBusy) return dropped.error();
  }
  return Error(Errc::kBusy, "readers have all " + std::to_string(slots_.size()) + " versions of " +
                                options_.name + " open");
}

Result<void> Publisher::publish(std::uint64_t version, std::uint64_t run) {
  const std::lock_guard busy(busy_);
  if (version <= last_version_) {
    return Error(Errc::kInvalidArgument,
                 "version " + std::to_string(version) + " is not above the last one");
  }
  const NodeSession& node = pool_.nodes()[ring_.node.value()];
  auto done = try_publish(version, run);
  for (int i = 0; i < kRestartRetries && !done; ++i) {
    // Its daemon ended meanwhile, and the next one has the memory. An error of `fill` tells nothing
    // of the daemon.
    if (fill_failed_ || done.error().code() != Errc::kUnavailable || !node.fault->resumable()) {
      break;
    }
    done = try_publish(version, run);
  }
  return done;
}

Result<void> Publisher::try_publish(std::uint64_t version, std::uint64_t run) {
  const ObjectPartId id{options_.name, version, run, manifest_.part};
  fill_failed_ = false;
  Slot* slot = nullptr;
  {
    const std::lock_guard lock(mutex_);
    announce_again();
    if (told_ == nullptr) return Error(Errc::kUnavailable, "the node's daemon does not answer");
    const bool heard = std::any_of(slots_.begin(), slots_.end(), [&](const Slot& one) {
      return one.announced && one.heard && one.part.id.version == version;
    });
    if (heard) return {};  // the last try's, whose answer was lost
    // Before the oldest version makes room for it.
    if (auto ok = reserve(id); !ok) return ok;
    const auto free = free_slot();
    if (!free) return free.error();
    slot = *free;
  }
  // Not announced, so nobody else looks at it.
  if (auto ok = put(*slot, id); !ok) return ok.error();
  return make_visible(*slot, id);
}

Result<void> Publisher::make_visible(Slot& slot, const ObjectPartId& id) {
  const std::lock_guard lock(mutex_);
  ObjectPart& part = slot.part;
  part.id = id;
  part.parts = parts_;
  part.description = description_;
  part.segments.clear();
  for (const HeldSegment& held : ring_.arena->segments) part.segments.push_back(held.segment.id);
  part.offset_bytes = slot.offset_bytes;
  part.length_bytes = tiles_bytes_ + manifest_bytes_;
  part.manifest_offset_bytes = tiles_bytes_;
  part.manifest_bytes = manifest_bytes_;
  part.manifest = checksum128(manifest_buffer_, manifest_seed(part.id));
  if (told_ == nullptr) return Error(Errc::kUnavailable, "the node's daemon does not answer");
  slot.heard = false;
  if (auto ok = announce(part); !ok) {
    // It may have been heard all the same: the number is used up, and the slot is dropped first.
    slot.announced = ok.error().code() != Errc::kAlreadyExists;
    if (slot.announced) last_version_ = id.version;
    return ok.error();
  }
  slot.announced = slot.heard = true;
  last_version_ = id.version;
  return {};
}

Result<void> Publisher::put(const Slot& slot, const ObjectPartId& id) {
  TransferWindow window(pool_.engine(), options_.link_bytes_per_s, options_.stop);
  for (std::size_t i = 0; i < manifest_.tiles.size(); ++i) {
    if (manifest_.tiles[i].checksums.empty()) continue;
    if (options_.fill) {
      while (window.size() > 0) {
        if (auto ok = window.wait_first(); !ok) return ok;
      }
      if (auto ok = go_on(options_.stop); !ok) return ok;
      const auto filled = options_.fill(i);
      fill_failed_ = !filled;
      if (!filled) return filled;
    }
    if (auto ok = put_tile(window, slot, id, i); !ok) return ok;
  }
  const std::string text = write_manifest(manifest_);
  HO_CHECK(text.size() == manifest_bytes_);
  std::memcpy(manifest_buffer_.data(), text.data(), text.size());
  if (auto ok = window.start(Direction::kPut, ring_.arena->map, slot.offset_bytes + tiles_bytes_,
                             manifest_buffer_.data(), manifest_bytes_, *manifest_handles_);
      !ok) {
    return ok;
  }
  while (window.size() > 0) {
    if (auto ok = window.wait_first(); !ok) return ok;
  }
  return {};
}

/// Starts transfers first: the checksums are made while the bytes move.
Result<void> Publisher::put_tile(TransferWindow& window, const Slot& slot, const ObjectPartId& id,
                                 std::size_t tensor) {
  const Tile& tile = tiles_[tensor];
  const ChunkGrid& chunks = tile.chunks;
  const ObjectMemory& memory = memory_.at(tensor);
  ObjectTile& stored = manifest_.tiles[tensor];
  const bool direct = chunks.in_order();
  for (std::size_t begin = 0, end = 0; begin < chunks.size(); begin = end) {
    const std::uint64_t offset = chunks.offset_bytes(begin);
    while (end < chunks.size() && chunks.offset_bytes(end + 1) - offset <= kObjectPieceBytes) ++end;
    if (window.size() == BounceBuffer::kPieces) {
      if (auto ok = window.wait_first(); !ok) return ok;
    }
    std::byte* const bytes = direct ? memory.data + offset : gather(tensor, begin, end);
    const LocalHandles& registered = direct ? *memory.registered : bounce_.handles();
    const std::uint64_t length = chunks.offset_bytes(end) - offset;
    if (auto ok = window.start(Direction::kPut, ring_.arena->map,
                               slot.offset_bytes + stored.offset_bytes + offset, bytes, length,
                               registered);
        !ok) {
      return ok;
    }
    for (std::size_t i = begin; i < end; ++i) {
      const std::span<const std::byte> chunk(bytes + (chunks.offset_bytes(i) - offset),
                                             chunks.bytes(i));
      stored.checksums[i] = checksum128(chunk, chunk_seed(id, tensor, i));
    }
  }
  return {};
}

/// Puts the chunks from `begin` to `end` behind one another.
std::byte* Publisher::gather(std::size_t tensor, std::size_t begin, std::size_t end) {
  const Tile& tile = tiles_[tensor];
  std::byte* const to = bounce_.next();
  const std::uint64_t offset = tile.chunks.offset_bytes(begin);
  for (std::size_t i = begin; i < end; ++i) {
    const layout::Box box = tile.chunks.box(i);
    copy(copies_of(tile.box, box, box, options_.tensors[tensor].element_bytes),
         memory_.at(tensor).data, to + (tile.chunks.offset_bytes(i) - offset));
  }
  return to;
}

}  // namespace ho::client
