#include "client/pool/pool.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>

#include "client/transfer/control_stager.hpp"
#include "common/base/check.hpp"

namespace ho::client {
namespace {

/// Stands for the node of pinned memory that belongs to none.
constexpr std::uint32_t kNoNode = UINT32_MAX;
/// The deadline of a stage request: a disk that serves others may take seconds. A lost daemon is
/// noticed at once.
constexpr Duration kStageTimeout = std::chrono::seconds(10);

Result<void> ask_to_stage(const NodeSession& node, const StageOp& op, ControlStager::Done done) {
  StageSpec spec;
  spec.direction = op.direction;
  spec.extent = op.flash.extent;
  spec.extent_offset_bytes = op.flash.offset_bytes;
  spec.segment = op.segment;
  spec.segment_offset_bytes = op.segment_offset_bytes;
  spec.length_bytes = op.length_bytes;
  return node.control()->stage(node.session, spec, std::move(done));
}

}  // namespace

Result<NumaWish> NumaWish::parse(const std::string& text) {
  NumaWish wish;
  if (text.empty() || text == "auto") return wish;
  wish.kind = text == "off" ? Kind::kAny : Kind::kNode;
  if (wish.kind == Kind::kAny) return wish;
  const auto nodes = parse_numa_nodes(text);
  if (!nodes || nodes->size() != 1) {
    return Error(Errc::kInvalidArgument,
                 "local_numa: \"" + text + "\" is neither auto nor off nor the number of a node");
  }
  wish.node = nodes->front();
  const auto machine = read_numa_memory();
  const bool there = std::any_of(machine.begin(), machine.end(),
                                 [&](const NumaMemory& one) { return one.node == wish.node; });
  if (there) return wish;
  return Error(Errc::kInvalidArgument, "local_numa: NUMA node " + text +
                                           " has no memory for this process; those that have: " +
                                           (machine.empty() ? "none" : list_numa_nodes(machine)));
}

std::optional<NumaNode> NumaWish::resolve(std::span<const std::byte> memory) const {
  switch (kind) {
    case Kind::kAny: return std::nullopt;
    case Kind::kNode: return node;
    case Kind::kNear: break;
  }
  const auto there = numa_node_of(memory);
  return there ? there : numa_node_here();
}

Result<std::unique_ptr<Pool>> Pool::connect(const PoolOptions& options) {
  std::unique_ptr<Pool> made(new Pool(options));
  if (auto ok = made->start(); !ok) return ok.error();
  return made;
}

Result<void> Pool::start() {
  paths_.emplace(
      options_.transport,
      [this](const std::string& name) {
        return make_driver(name, options_.drivers, options_.op_deadline, clock_);
      },
      clock_);
  options_.sessions.progress = progress_;
  auto sessions = Sessions::connect(options_.sessions, *paths_, door_, losses_);
  if (!sessions) return sessions.error();
  sessions_ = std::move(sessions).value();

  std::vector<Engine::Driver> drivers;
  const auto on_owner = [this](const std::function<void()>& work) { engine_->call(work); };
  for (PathFinder::Found& found : paths_->take(on_owner)) {
    drivers.push_back(std::move(found.driver));
    driver_names_.push_back(std::move(found.name));
  }
  HO_CHECK(drivers.size() <= kDriversMax);
  transport_name_ = nodes().begin()->driver;
  for (const NodeSession& node : nodes()) {
    if (node.driver != transport_name_) transport_name_ = "mixed";
  }
  engine_ = std::make_unique<Engine>(std::move(drivers), door_);

  auto started = engine_->call([this]() -> Result<void> {
    for (const NodeSession& node : nodes()) {
      engine_->add_node({node.label, driver_of(node), node.peer, node.fault});
      instances_.push_back(node.control()->hello().daemon_instance);
    }
    if (options_.link_bytes_per_s > 0) {
      engine_->set_link(static_cast<double>(options_.link_bytes_per_s));
    }
    ControlStager::Options stages;
    stages.op_bytes_max = kStageBytesMax;
    stages.send = [sessions = sessions_.get()](const StageOp& op, ControlStager::Done done) {
      return ask_to_stage(sessions->nodes()[op.flash.node.value()], op, std::move(done));
    };
    engine_->set_stager(std::make_unique<ControlStager>(std::move(stages), clock_, door_),
                        kStageTimeout);
    return {};
  });
  if (!started) return started;
  resumer_.emplace("ho-resume", losses_, [this] { return look_for_lost(); });
  Leavers::Options leaving;
  leaving.notices = sessions_->notices();
  leaving.notice = [this] { return notice(); };
  leaving.use_new_nodes = [this] { use_new_nodes(TriedNodes::kRest); };
  leavers_.emplace(std::move(leaving));
  return {};
}

DriverIndex Pool::driver_of(const NodeSession& node) const {
  const auto at = std::find(driver_names_.begin(), driver_names_.end(), node.driver);
  HO_CHECK(at != driver_names_.end());
  return DriverIndex(static_cast<std::uint32_t>(at - driver_names_.begin()));
}

FailureDomains Pool::failure_domains() const {
  // A node that is back has a further entry. Its earlier ones say where it was.
  std::map<NodeId, FailureDomains::Place> latest;
  std::vector<NodeId> ids;
  for (const NodeSession& node : nodes()) {
    ids.push_back(node.control()->hello().node);
    latest[ids.back()] = {node.rack, node.machine};
  }
  std::vector<FailureDomains::Place> places;
  places.reserve(ids.size());
  for (const NodeId id : ids) places.push_back(latest.at(id));
  return FailureDomains(places);
}

std::vector<NodeIndex> Pool::nodes_of(Nearness nearness) const {
  std::vector<NodeIndex> found;
  for (std::uint32_t i = 0; i < nodes().size(); ++i) {
    if (nodes()[i].fault->reason() != FaultReason::kNone) continue;
    const Nearness its = nodes()[i].driver == "local" ? Nearness::kNear : Nearness::kFar;
    if (nearness == Nearness::kAny || nearness == its) found.push_back(NodeIndex(i));
  }
  return found;
}

std::vector<NodeIndex> Pool::candidates(Nearness nearness) const {
  auto fitting = nodes_of(nearness);
  return fitting.empty() ? nodes_of(Nearness::kAny) : fitting;
}

std::uint64_t Pool::segment_bytes_of(const std::vector<NodeIndex>& nodes_asked) const {
  // plan_spread() takes equal pieces, of the smallest segment's size, from nodes_of_arena().
  std::uint64_t least = UINT64_MAX;
  for (const NodeIndex node : nodes_asked) {
    least = std::min(least, nodes()[node.value()].control()->hello().segment_bytes);
  }
  return nodes_asked.empty() ? 0 : least * std::min(nodes_asked.size(), kArenaNodesMin);
}

Result<std::unique_ptr<Arena>> Pool::allocate(std::uint64_t bytes, const Where& where) {
  if (bytes == 0) return std::make_unique<Arena>();
  const ArenaSpec spec{bytes, where.parts, options_.numa.resolve(where.user)};
  return take(spec, candidates(where.nearness), where.streams);
}

Result<std::unique_ptr<Arena>> Pool::allocate_on(NodeIndex node, std::uint64_t bytes,
                                                 DeviceStreams* streams) {
  HO_CHECK(bytes > 0);
  const ArenaSpec spec{bytes, {}, options_.numa.resolve({})};
  return take(spec, {node}, streams);
}

/// Grants memory and attaches it. Where a daemon was restarted in between, the next one has handed
/// out new keys, but not for what nobody had attached: that memory goes back, and is asked for
/// again.
Result<std::unique_ptr<Arena>> Pool::take(const ArenaSpec& spec, const std::vector<NodeIndex>& from,
                                          DeviceStreams* streams) {
  for (int i = 0;; ++i) {
    auto arena = attach(sessions_->grant(spec, from), streams);
    if (arena || arena.error().code() != Errc::kConflict) return arena;
    if (i == kRestartRetries) return Error(Errc::kUnavailable, arena.error().context());
  }
}

/// The transfer thread. Whether a segment's key is one of a daemon that is gone.
bool Pool::keys_ended(const Arena& arena) {
  return std::any_of(arena.segments.begin(), arena.segments.end(), [this](const HeldSegment& held) {
    const NodeSession& node = nodes()[held.node.value()];
    const bool by_key = !engine_->transport(driver_of(held.node)).caps().needs_descriptor;
    const bool gone = node.fault->resumable() && node.control()->closed();
    return by_key && (gone || held.instance != instances_[held.node.value()]);
  });
}

Result<std::unique_ptr<Arena>> Pool::attach(Result<HeldArena> granted, DeviceStreams* streams) {
  if (!granted) return granted.error();
  auto arena = std::make_unique<Arena>();
  arena->segments = std::move(granted->segments);
  Result<std::vector<std::byte*>> mapped = std::vector<std::byte*>(arena->segments.size());
  if (streams != nullptr) mapped = pin(*arena, *streams);
  const auto ok = mapped ? attach(*arena, granted->stretches, *mapped) : mapped.error();
  if (!ok) {
    release(std::move(arena));
    return ok.error();
  }
  return arena;
}

Result<std::unique_ptr<Arena>> Pool::attach_shared(NodeIndex node,
                                                   std::vector<GrantedSegment> segments) {
  auto arena = std::make_unique<Arena>();
  arena->shared = true;
  std::vector<HeldStretch> stretches;
  for (GrantedSegment& segment : segments) {
    stretches.push_back({stretches.size(), 0, segment.length_bytes});
    arena->segments.push_back({node, std::move(segment), 0});
  }
  const auto ok = attach(*arena, stretches, std::vector<std::byte*>(arena->segments.size()));
  if (!ok) {
    release(std::move(arena));
    return ok.error();
  }
  return arena;
}

/// Maps and pins the segments that lie on this machine, on the calling thread: it takes long.
/// @return where each is; null: on another machine.
Result<std::vector<std::byte*>> Pool::pin(Arena& arena, DeviceStreams& streams) const {
  std::vector<std::byte*> mapped;
  for (const HeldSegment& held : arena.segments) {
    mapped.push_back(nullptr);
    if (!held.segment.fd.valid()) continue;
    auto pinned = PinnedSegment::create(held.segment.fd.get(), held.segment.length_bytes,
                                        held.node.value(), streams);
    if (!pinned) return pinned.error();
    mapped.back() = pinned->data();
    arena.pinned.push_back(std::move(pinned).value());
  }
  return mapped;
}

Result<void> Pool::attach(Arena& arena, const std::vector<HeldStretch>& stretches,
                          const std::vector<std::byte*>& mapped) {
  return engine_->call([&]() -> Result<void> {
    if (!arena.shared && keys_ended(arena)) {
      return Error(Errc::kConflict, "a daemon was restarted while its memory was granted");
    }
    for (HeldSegment& held : arena.segments) {
      transport::RegionGrant grant;
      grant.key = held.segment.key;
      grant.fd = std::move(held.segment.fd);
      grant.length_bytes = held.segment.length_bytes;
      if (arena.shared) grant.rights = transport::Rights::kRead;
      const DriverIndex driver = driver_of(held.node);
      auto region = engine_->transport(driver).attach(engine_->peer(held.node), std::move(grant));
      if (!region) return region.error().at(nodes()[held.node.value()].label);
      arena.regions.push_back(*region);
    }
    std::vector<ArenaExtent> extents;
    std::uint64_t begin = 0;
    for (const HeldStretch& stretch : stretches) {
      const HeldSegment& held = arena.segments[stretch.segment];
      std::byte* const base = mapped[stretch.segment];
      extents.push_back({begin, stretch.length_bytes, driver_of(held.node), held.node,
                         arena.regions[stretch.segment], stretch.offset_bytes, held.segment.id,
                         base != nullptr ? base + stretch.offset_bytes : nullptr});
      begin += stretch.length_bytes;
    }
    arena.map = ArenaMap(std::move(extents));
    arenas_.insert(&arena);
    return {};
  });
}

bool Pool::may_fit(const Need& need, const std::vector<NodeIndex>& nodes_asked) {
  const Rooms rooms = sessions_->rooms_of(nodes_asked);
  Need all;
  for (const NodeRoom& room : rooms.ddr) {
    if (room.capacity_bytes == 0) return true;  // it did not answer
    all.ddr_bytes += room.capacity_bytes;
    all.ddr_whole_bytes = std::max(all.ddr_whole_bytes, room.capacity_bytes);
  }
  for (const FlashRoom& room : rooms.flash) {
    all.flash_bytes += room.capacity_bytes;
    all.flash_whole_bytes = std::max(all.flash_whole_bytes, room.capacity_bytes);
  }
  const bool fits =
      need.ddr_bytes <= all.ddr_bytes && need.ddr_whole_bytes <= all.ddr_whole_bytes &&
      need.flash_bytes <= all.flash_bytes && need.flash_whole_bytes <= all.flash_whole_bytes;
  return fits || !sessions_->out_of_reach().empty();
}

Result<FlashArena> Pool::allocate_flash(NodeIndex node, std::uint64_t bytes, FlashPolicy policy) {
  auto extent = sessions_->allocate_flash(node, bytes, policy);
  if (!extent) return extent.error();
  return FlashArena{node, *extent};
}

Result<FlashArena> Pool::open_flash(NodeId node, const FlashExtent& extent) {
  // From the last: one that was lost and is back comes again behind those before.
  for (auto i = static_cast<std::uint32_t>(nodes().size()); i-- > 0;) {
    if (nodes()[i].control()->hello().node != node) continue;
    auto opened = sessions_->open_flash(NodeIndex(i), extent);
    if (!opened) return opened.error();
    return FlashArena{NodeIndex(i), *opened};
  }
  return Error(Errc::kNotFound, "no node " + std::to_string(node.value()) + " in the pool");
}

Result<void> Pool::free_flash(const FlashArena& flash) {
  return sessions_->free_flash(flash.node, flash.extent.id);
}

Result<std::uint64_t> Pool::start_stage(Direction direction, const FlashArena& flash,
                                        std::uint64_t flash_offset_bytes, const ArenaMap& arena,
                                        std::uint64_t arena_offset_bytes, std::uint64_t bytes,
                                        std::uint64_t urgency) {
  const auto leaves = [&](std::uint64_t offset, std::uint64_t limit) {
    return offset > limit || bytes > limit - offset;
  };
  if (bytes == 0) return Error(Errc::kInvalidArgument, "no bytes");
  if (leaves(flash_offset_bytes, flash.extent.length_bytes) ||
      leaves(arena_offset_bytes, arena.bytes())) {
    return Error(Errc::kOutOfRange, "offset + bytes leaves the allocation");
  }
  for (std::uint64_t at = arena_offset_bytes; at < arena_offset_bytes + bytes;) {
    const ArenaExtent& extent = arena.extent_at(at);
    if (extent.node != flash.node) {
      return Error(Errc::kInvalidArgument, "the memory lies on another node than the flash");
    }
    at = extent.begin_bytes + extent.length_bytes;
  }
  Transfer transfer;
  transfer.direction = direction;
  transfer.arena = &arena;
  transfer.arena_offset_bytes = arena_offset_bytes;
  transfer.bytes = bytes;
  transfer.flash = FlashPlace{flash.node, flash.extent.id, flash_offset_bytes};
  transfer.urgency = urgency;
  return engine_->start(transfer);
}

void Pool::release(std::unique_ptr<Arena> arena) {
  if (arena == nullptr) return;
  engine_->wait_unused(&arena->map);
  arena->pinned.clear();  // before the memory is anybody else's
  engine_->call([&] {
    arenas_.erase(arena.get());
    for (std::size_t i = 0; i < arena->regions.size(); ++i) {
      engine_->transport(driver_of(arena->segments[i].node)).detach(arena->regions[i]);
    }
  });
  if (!arena->shared) sessions_->release(arena->segments);
}

Result<LocalHandles> Pool::register_memory(std::span<std::byte> memory) {
  return engine_->call([&] { return engine_->mover().register_memory(memory); });
}

void Pool::unregister_memory(const LocalHandles& handles) {
  engine_->wait_unused(handles);
  engine_->call([&] { engine_->mover().unregister_memory(handles); });
}

Result<void> Pool::move_now(Direction direction, const ArenaMap& arena, std::uint64_t offset_bytes,
                            std::span<std::byte> memory) {
  auto handles = register_memory(memory);
  if (!handles) return handles.error();
  auto outcome = move_registered(direction, arena, offset_bytes, memory, *handles);
  unregister_memory(*handles);
  return outcome;
}

Result<void> Pool::move_registered(Direction direction, const ArenaMap& arena,
                                   std::uint64_t offset_bytes, std::span<std::byte> memory,
                                   const LocalHandles& handles, Duration late_after,
                                   transport::TrafficClass traffic) {
  Transfer transfer;
  transfer.traffic = traffic;
  if (traffic == transport::TrafficClass::kDeadline) transfer.urgency = Urgency::kFirst;
  transfer.late_after = late_after;
  transfer.direction = direction;
  transfer.arena = &arena;
  transfer.arena_offset_bytes = offset_bytes;
  transfer.memory = memory.data();
  transfer.bytes = memory.size();
  transfer.local = handles;
  const auto ticket = engine_->start(transfer);
  if (!ticket) return ticket.error();
  return engine_->wait(*ticket);
}

Result<void> Pool::move_device(Direction direction, const ArenaMap& arena,
                               std::uint64_t offset_bytes, std::span<std::byte> memory,
                               DeviceStreams& streams) {
  if (auto ok = streams.mark_job(streams.next_job_mark()); !ok) return ok;
  Transfer transfer;
  transfer.direction = direction;
  transfer.arena = &arena;
  transfer.arena_offset_bytes = offset_bytes;
  transfer.memory = memory.data();
  transfer.bytes = memory.size();
  transfer.streams = &streams;
  transfer.after = streams.everything();
  transfer.done_when = DoneWhen::kMoved;
  transfer.urgency = Urgency::kFirst;
  const auto ticket = engine_->start(transfer);
  if (!ticket) return ticket.error();
  return engine_->wait(*ticket);
}

Result<void> Pool::add_device(DeviceStreams& streams) {
  if (auto entered = engine_->call([&] { return streams.accel().enter(); }); !entered) {
    return entered;
  }
  BounceMemory bounce;
  // Also for nodes that come later.
  const bool far = std::any_of(driver_names_.begin(), driver_names_.end(),
                               [](const std::string& name) { return name != "local"; });
  if (far) {
    constexpr std::uint64_t kBytes = DeviceCarrier::kBounceMemoryBytes;
    void* const base = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (base == MAP_FAILED) return errno_error(errno, "memory for an accelerator's transfers");
    bounce.memory = {static_cast<std::byte*>(base), kBytes};
    auto ok = streams.pin(bounce.memory, kNoNode);
    auto handles = ok ? register_memory(bounce.memory) : ok.error();
    if (!handles) {
      streams.unpin(bounce.memory);
      ::munmap(base, kBytes);
      return handles.error();
    }
    bounce.local = *handles;
  }
  devices_[&streams] = bounce;
  engine_->call([&] { engine_->mover().devices().add(&streams, bounce); });
  return {};
}

void Pool::remove_device(DeviceStreams& streams) {
  const auto device = devices_.find(&streams);
  HO_CHECK(device != devices_.end());
  engine_->call([&] { engine_->mover().devices().remove(&streams); });
  const BounceMemory bounce = device->second;
  devices_.erase(device);
  if (bounce.memory.empty()) return;
  unregister_memory(bounce.local);
  streams.unpin(bounce.memory);
  ::munmap(bounce.memory.data(), bounce.memory.size());
}

}  // namespace ho::client
