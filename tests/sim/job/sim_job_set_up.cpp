// What a simulated job is made of: nodes, homes, and the bytes in them.
#include "tests/sim/job/sim_job.hpp"

#include <algorithm>
#include <cstring>

#include "client/runtime/homes/home_layout.hpp"
#include "common/base/check.hpp"
#include "common/base/units.hpp"

namespace ho::test {
namespace {

using client::ValuePlace;

constexpr Duration kOpDeadline = std::chrono::milliseconds(20);
/// Longer than nodes stand still.
constexpr Duration kPatientDeadline = std::chrono::milliseconds(1500);
constexpr std::uint64_t kSegmentBytes = 8192;

SimLink random_link(Prng& random, SimFault fault) {
  SimLink link;
  link.delay_max = Duration(1000 + static_cast<std::int64_t>(random.below(100000)));
  link.depth_ops_max = static_cast<std::uint32_t>(1 + random.below(8));
  if (random.below(2) == 0) link.bytes_per_s = 100'000'000 + random.below(1'000'000'000);
  // So fast that what takes long took a node that stands still.
  if (fault == SimFault::kPauseNodes) link.depth_ops_max += 4;
  if (fault == SimFault::kLoss) link.loss = 0.02;
  return link;
}

SimStager::Options random_flash(Prng& random, SimFault fault) {
  SimStager::Options flash;
  flash.delay_max = Duration(1000 + static_cast<std::int64_t>(random.below(300000)));
  flash.depth_ops = static_cast<std::uint32_t>(1 + random.below(8));
  if (fault == SimFault::kBadFlash) flash.failure = 0.02;
  return flash;
}

}  // namespace

SimJob::SimJob(const std::vector<schedule::Schedule>& plans, std::uint64_t seed, SimFault fault,
               SimDevice device)
    : random_(seed),
      fault_(fault),
      device_(device),
      link_(random_link(random_, fault)),
      transport_(fabric_, clock_, link_, random_.next()),
      stager_(clock_, random_flash(random_, fault), random_.next(),
              [this](client::NodeIndex node, SegmentId segment) {
                return std::span(nodes_[node.value()].segments[segment.value()]);
              }) {
  const auto door = std::make_shared<client::Doorbell>();
  for (const char* address : {"a", "b"}) {
    fabric_.add_peer(address);
    const auto peer = transport_.connect({NodeId(0), address}, clock_.now() + kOpDeadline);
    HO_CHECK(peer.ok());
    nodes_.push_back({address, *peer, {}, std::make_shared<client::NodeFault>(door)});
    if (fault == SimFault::kRestartNodes) nodes_.back().fault->set_resumable();
  }
  client::DriverPort port;
  port.transport = &transport_;
  port.piece_bytes = (fault == SimFault::kPauseNodes ? 1000 : 1) + random_.below(9000);
  port.pieces_max = static_cast<std::uint32_t>(1 + random_.below(12));
  port.small_pieces_max = static_cast<std::uint32_t>(1 + random_.below(12));
  port.op_deadline = fault == SimFault::kPauseNodes ? kPatientDeadline : kOpDeadline;
  mover_.emplace(std::vector<client::DriverPort>{port}, clock_);
  for (const auto& node : nodes_) mover_->add_lease(node.fault);
  client::StagePort stage;
  stage.stager = &stager_;
  stage.piece_bytes = 1 + random_.below(5000);
  stage.pieces_max = static_cast<std::uint32_t>(1 + random_.below(12));
  stage.op_deadline = kOpDeadline;
  mover_->set_stager(stage);

  std::uint64_t arena_bytes = 0;
  for (const auto& plan : plans) arena_bytes = std::max(arena_bytes, plan.arena_bytes);
  arena_.resize(arena_bytes);
  fill(arena_, seed ^ 0xdeadU);
  const auto handles = mover_->register_memory(arena_);
  HO_CHECK(handles.ok());
  handles_ = *handles;
  for (const auto& plan : plans) add(plan);
  for (auto& [name, held] : held_) {
    held.model = random_value(held.model.size());
    held.place.at_home = true;
    write_home(held.home, 0, held.model);
  }
  if (fault == SimFault::kKillPeer || fault == SimFault::kStopPeer || doubled_faults()) {
    fault_at_ = clock_.now() + Duration(static_cast<std::int64_t>(random_.below(3'000'000)));
    fault_node_ = static_cast<std::uint32_t>(random_.below(nodes_.size()));
  }
}

SimJob::~SimJob() = default;

/// Homes as client::Plan places them, memory shared between plans apart.
void SimJob::add(const schedule::Schedule& schedule) {
  plans_.emplace_back();
  Plan& plan = plans_.back();
  plan.schedule = schedule;
  const std::uint64_t copies_bytes_max = schedule.local_ddr_bytes / 4;
  const client::OwnHomes own = client::take_out_own_homes(plan.schedule);
  const auto homes_of = [&](StorageIndex storage) {
    return schedule::second_home(schedule, storage) ? Homes::kTwo : Homes::kOne;
  };
  const std::size_t count = schedule.storages.size();
  plan.homes.resize(count);
  plan.model.resize(count);
  plan.last.assign(count, 0);
  for (std::uint32_t p = 0; p < schedule.positions.size(); ++p) {
    for (const auto& operand : schedule.positions[p].operands) {
      plan.last[operand.storage.value()] = p;
    }
  }
  for (const StorageIndex index : own.ddr) {
    const Storage& storage = schedule.storages[index.value()];
    if (!storage.persistent) {
      const std::size_t values = is_input(storage) ? 2 : 1;
      plan.homes[index.value()] = own_home(storage.bytes, values, homes_of(index));
      continue;
    }
    Held& held = held_[storage.name];
    if (held.home.area == nullptr) held.home = own_home(storage.bytes, 1, homes_of(index));
    plan.homes[index.value()] = held.home;
  }
  // Flash that other plans use is not free. Homes there begin at whole blocks.
  std::vector<client::FlashRoom> rooms;
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    rooms.push_back({client::NodeIndex(i), nodes_[i].address,
                     schedule.flash_bytes + (count + 1) * client::kFlashAlign});
  }
  std::vector<std::optional<client::FlashHome>> placed(count);
  for (const StorageIndex index : own.flash) {
    const auto& flash = held_[schedule.storages[index.value()].name].home.flash;
    if (flash) placed[index.value()] = client::FlashHome{flash->node, flash->offset_bytes};
  }
  auto flash = client::plan_flash_homes(plan.schedule, rooms, placed, copies_bytes_max);
  HO_CHECK(flash.ok());
  client::move_slots(*flash, plan.schedule);
  std::vector<std::uint64_t> base;
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    auto& bytes = stager_.flash(client::NodeIndex(i));
    base.push_back(bytes.size());
    for (const auto& node : flash->nodes) {
      if (node.node.value() == i) bytes.resize(bytes.size() + node.flash_bytes, std::byte{0xee});
    }
  }
  plan.map = spread(flash->local_ddr_bytes + plan.schedule.remote_ddr_bytes, flash->parts);
  plan.area = {&plan.map, 0, plan.map.bytes()};
  for (std::uint32_t s = 0; s < count; ++s) {
    const Storage& storage = schedule.storages[s];
    const auto& home = plan.schedule.homes[s];
    if (flash->homes[s]) {
      const std::uint32_t node = flash->homes[s]->node.value();
      const std::uint64_t begin = placed[s] ? 0 : base[node];
      plan.homes[s].flash =
          client::FlashPlace{flash->homes[s]->node, 1, begin + flash->homes[s]->offset_bytes};
      if (storage.persistent) held_[storage.name].home = plan.homes[s];
    } else if (home) {
      const bool remote = home->tier == schedule::HomeTier::kRemoteDdr;
      plan.homes[s].area = &plan.area;
      plan.homes[s].offset_bytes.fill((remote ? flash->local_ddr_bytes : 0) + home->offset_bytes);
    }
    if (storage.persistent) {
      held_[storage.name].model.resize(storage.bytes);
    } else {
      plan.model[s].resize(storage.bytes);
    }
  }
  client::ReplayMemory memory;
  if (device_ == SimDevice::kArena) {
    memory.arena = arena_;
    memory.arena_handles = handles_;
  }
  memory.homes = plan.homes;
  memory.staging = &plan.area;
  memory.stage_chunk_bytes = 64 + random_.below(3000);
  auto replay = client::Replay::create(plan.schedule, memory, 1);
  HO_CHECK(replay.ok());
  plan.replay.emplace(std::move(replay).value());
}

client::StorageHome SimJob::own_home(std::uint64_t bytes, std::size_t copies, Homes homes) {
  const auto first = static_cast<std::uint32_t>(random_.below(nodes_.size()));
  const auto make = [&](std::uint32_t node) {
    const client::StagingPart whole{client::NodeIndex(node), 0, copies * bytes};
    const bool one_node = homes == Homes::kTwo;
    own_maps_.push_back(spread(
        copies * bytes, one_node ? std::span(&whole, 1) : std::span<const client::StagingPart>()));
    own_areas_.push_back({&own_maps_.back(), 0, own_maps_.back().bytes()});
    return client::HomePlace{&own_areas_.back(), {0, copies > 1 ? bytes : 0}};
  };
  const client::HomePlace place = make(first);
  client::StorageHome home;
  home.area = place.area;
  home.offset_bytes = place.offset_bytes;
  if (homes == Homes::kTwo) home.second = make(1 - first);
  return home;
}

client::ArenaMap SimJob::spread(std::uint64_t bytes, std::span<const client::StagingPart> parts) {
  std::vector<client::ArenaExtent> extents;
  for (std::uint64_t at = 0; at < bytes;) {
    auto index = static_cast<std::uint32_t>(random_.below(nodes_.size()));
    std::uint64_t length = std::min(kSegmentBytes, bytes - at);
    for (const client::StagingPart& part : parts) {
      const std::uint64_t end = part.begin_bytes + part.length_bytes;
      if (end <= at) continue;
      if (part.begin_bytes > at) {
        length = std::min(length, part.begin_bytes - at);
      } else {
        index = part.node.value();
        length = std::min(length, end - at);
      }
      break;
    }
    Node& node = nodes_[index];
    node.segments.emplace_back(kSegmentBytes);
    auto grant = fabric_.expose(node.address, node.segments.back(), transport::Rights::kReadWrite);
    const auto region = transport_.attach(node.peer, std::move(grant));
    HO_CHECK(region.ok());
    extents.push_back({at, length, client::DriverIndex(0), client::NodeIndex(index), *region, 0,
                       SegmentId(node.segments.size() - 1)});
    at += length;
  }
  return client::ArenaMap(std::move(extents));
}

void SimJob::fill(std::span<std::byte> into, std::uint64_t seed) {
  Prng stream(seed);
  for (std::size_t i = 0; i < into.size(); i += 8) {
    const std::uint64_t word = stream.next();
    std::memcpy(into.data() + i, &word, std::min<std::size_t>(8, into.size() - i));
  }
}

bool SimJob::is_input(const Storage& storage) {
  return !storage.persistent && storage.kind == StorageKind::kInput;
}

std::byte* SimJob::pool_byte(const client::ArenaMap& map, std::uint64_t offset) {
  const client::ArenaExtent& extent = map.extent_at(offset);
  return &nodes_[extent.node.value()].segments[extent.segment.value()][offset - extent.begin_bytes];
}

std::byte* SimJob::home_byte(const client::StorageHome& home, std::uint64_t parity,
                             std::uint64_t at, std::size_t which) {
  if (home.flash) return &stager_.flash(home.flash->node)[home.flash->offset_bytes + at];
  const client::HomePlace place = home.place(which);
  return pool_byte(*place.area->map, place.offset_bytes[parity % 2] + at);
}

/// As client::Storages::put(): a node that is lost gets no bytes.
void SimJob::write_home(const client::StorageHome& home, std::uint64_t parity,
                        const std::vector<std::byte>& value) {
  for (std::size_t which = 0; which < (home.doubled() ? 2 : 1); ++which) {
    if (home.doubled() && nodes_[home.place(which).node().value()].lost()) continue;
    for (std::uint64_t i = 0; i < value.size(); ++i) *home_byte(home, parity, i, which) = value[i];
  }
}

bool SimJob::at_home(const client::StorageHome& home, std::uint64_t parity,
                     std::uint8_t stale_homes, const std::vector<std::byte>& value) {
  bool any = false;
  for (std::size_t which = 0; which < (home.doubled() ? 2 : 1); ++which) {
    const bool lost = home.doubled() && nodes_[home.place(which).node().value()].lost();
    if (lost || (stale_homes & 1U << which) != 0) continue;
    any = true;
    for (std::uint64_t i = 0; i < value.size(); ++i) {
      if (*home_byte(home, parity, i, which) != value[i]) return false;
    }
  }
  return any;
}

std::vector<std::byte> SimJob::random_value(std::uint64_t bytes) {
  std::vector<std::byte> value(bytes);
  fill(value, random_.next());
  return value;
}

std::vector<std::byte>& SimJob::model(Plan& plan, std::uint32_t storage) {
  const Storage& known = plan.schedule.storages[storage];
  return known.persistent ? held_[known.name].model : plan.model[storage];
}

std::byte* SimJob::device_bytes(Plan& plan, std::uint32_t storage, std::uint64_t offset) {
  if (device_ == SimDevice::kArena) return arena_.data() + offset;
  return plan.replay->hosted()->address(StorageIndex(storage));
}

void SimJob::wrong(const std::string& what) {
  if (outcome_.wrong.empty()) outcome_.wrong = what;
}

/// Every place that the replay names for a value holds it.
void SimJob::check_place(Plan& plan, std::uint32_t storage, const ValuePlace& place) {
  const std::string& name = plan.schedule.storages[storage].name;
  const auto& expected = model(plan, storage);
  if (place.on_device) {
    const std::byte* const bytes = device_bytes(plan, storage, place.device_offset_bytes);
    if (bytes == nullptr || !std::equal(expected.begin(), expected.end(), bytes)) {
      wrong("device copy of " + name);
    }
  }
  const std::uint64_t parity = (plan.steps + 1) % 2;
  if (place.stale_homes != 0) outcome_.stale_values += 1;
  if (place.at_home && !at_home(plan.homes[storage], parity, place.stale_homes, expected)) {
    wrong("home copy of " + name);
  }
  for (std::uint64_t i = 0; place.staged && i < expected.size(); ++i) {
    if (*pool_byte(plan.map, place.staged_offset_bytes + i) != expected[i]) {
      wrong("staged copy of " + name);
      break;
    }
  }
}

}  // namespace ho::test
