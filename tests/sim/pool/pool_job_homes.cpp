// The values of a simulated job between its steps: their homes, repair, reads and writes.
#include <algorithm>
#include <utility>

#include "client/pool/placement/spread.hpp"
#include "client/runtime/homes/home_layout.hpp"
#include "common/base/check.hpp"
#include "tests/sim/pool/pool_job.hpp"

namespace ho::test {
namespace {

using client::Direction;
using client::HomeNodes;
using client::HomeRepair;
using client::Nearness;

constexpr Duration kRepairAfter = std::chrono::milliseconds(200);
constexpr Duration kLookAgain = std::chrono::seconds(1);
constexpr std::uint64_t kAlign = 64;
constexpr std::uint32_t kLoadsMax = 3;
constexpr Duration kLoadPause = std::chrono::seconds(1);

}  // namespace

std::vector<client::NodeIndex> PoolJob::present() const {
  std::vector<NodeIndex> out;
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    if (!nodes_[i].lost()) out.push_back(NodeIndex(i));
  }
  return out;
}

client::HomePool PoolJob::home_pool() const {
  const auto domains = [this] {
    std::vector<client::FailureDomains::Place> places;
    for (const Node& node : nodes_) {
      places.push_back({node.control->hello.rack, node.control->hello.boot_id});
    }
    return client::FailureDomains(places);
  };
  return {[this](NodeIndex node) { return nodes_[node.value()].control->hello.node; },
          nodes_.front().control->hello.node,
          client::kHomeNodes,
          domains,
          nodes_.size(),
          [this](Nearness) { return present(); },
          [this](NodeIndex node) { return nodes_[node.value()].lost(); },
          [this](NodeIndex node) {
            return nodes_[node.value()].drained && !world_.planted(Planted::kDrainIgnored);
          },
          [this](NodeIndex node) { return nodes_[node.value()].home_bytes; }};
}

/// Homes as client::Plan and client::Storages place them. Each home has memory of its own here,
/// where production has heaps.
Result<void> PoolJob::allocate() {
  const client::OwnHomes own = client::take_out_own_homes(schedule_);
  HO_CHECK(own.flash.empty());
  std::set<std::uint32_t> own_homes;
  for (const StorageIndex storage : own.ddr) own_homes.insert(storage.value());
  held_.resize(schedule_.storages.size());
  for (std::uint32_t s = 0; s < held_.size(); ++s) {
    const Storage& storage = schedule_.storages[s];
    Held& held = held_[s];
    held.number = s;
    held.bytes = storage.bytes;
    held.persistent = storage.persistent;
    held.input = !storage.persistent && storage.kind == StorageKind::kInput;
    held.values = held.input ? 2 : 1;
    if (!own_homes.contains(s)) continue;
    if (schedule::second_home(*plan_, StorageIndex(s))) {
      if (auto ok = allocate_two(held); !ok) return ok;
    } else {
      auto arena = grant(held.values * held.bytes, present());
      if (!arena) return arena.error();
      held.arenas[0] = *arena;
    }
    name_home(held);
  }
  const std::uint64_t rest = schedule_.local_ddr_bytes + schedule_.remote_ddr_bytes;
  if (rest > 0) {
    auto arena = grant(rest, present());
    if (!arena) return arena.error();
    shared_ = *arena;
  }
  for (std::uint32_t s = 0; s < held_.size(); ++s) {
    const auto& home = schedule_.homes[s];
    if (own_homes.contains(s) || !home) continue;
    const bool remote = home->tier == schedule::HomeTier::kRemoteDdr;
    held_[s].home.area = &shared_->area;
    held_[s].home.offset_bytes.fill((remote ? schedule_.local_ddr_bytes : 0) + home->offset_bytes);
  }
  return {};
}

/// As Storages::allocate_doubled().
Result<void> PoolJob::allocate_two(Held& held) {
  const client::DoubledWish wish{held.values * held.bytes, {Nearness::kAny, Nearness::kAny}};
  std::vector<NodeIndex> full;
  for (;;) {
    client::HomePool pool = home_pool();
    if (world_.planted(Planted::kDomainsIgnored)) {
      pool.domains = [this] {
        std::vector<client::FailureDomains::Place> places(nodes_.size());
        return client::FailureDomains(places);
      };
    }
    std::vector<std::uint64_t> wanted(pool.nodes, 0);
    const auto chosen = client::choose_homes(pool, std::span(&wish, 1), full, kAlign, wanted);
    if (!chosen) {
      // A daemon that has just started does not know the others yet: a later load finds them.
      if (loads_ == kLoadsMax) return chosen.error();
      loads_ += 1;
      world_.fibers().sleep(kLoadPause);
      use_new_nodes();
      full.clear();
      continue;
    }
    const HomeNodes nodes = chosen->front();
    std::array<Arena*, 2> arenas{};
    std::size_t h = 0;
    for (; h < 2; ++h) {
      auto arena = grant(wish.bytes, {nodes[h]});
      if (!arena) break;
      arenas[h] = *arena;
    }
    if (h == 2) {
      held.nodes = nodes;
      held.arenas = arenas;
      for (const NodeIndex node : nodes) nodes_[node.value()].home_bytes += wish.bytes;
      return {};
    }
    if (arenas[0] != nullptr) release(arenas[0]);
    full.push_back(nodes[h]);
  }
}

void PoolJob::name_home(Held& held) {
  const std::uint64_t second = held.input ? held.bytes : 0;
  held.home.area = &held.arenas[0]->area;
  held.home.offset_bytes = {0, second};
  if (held.nodes) held.home.second = {&held.arenas[1]->area, {0, second}};
}

/// As Storages::put_in_time().
Result<void> PoolJob::put(Held& held, std::uint64_t parity, std::uint8_t& missed) {
  std::vector<std::byte> value(held.bytes);
  fill_stamped(value, stamp_of(held));
  if (!held.home.doubled()) {
    return move_now(Direction::kPut, *held.home.area->map, held.home.offset_bytes[parity], value);
  }
  const auto takes = [&](std::size_t h) {
    return (missed & 1U << h) == 0 && !nodes_[held.home.place(h).node().value()].lost();
  };
  std::optional<NodeIndex> failed;
  bool arrived = false;
  for (std::size_t h = 0; h < 2; ++h) {
    if (!takes(h)) continue;
    if (h == 1 && arrived && world_.planted(Planted::kOneHomeWritten)) continue;
    const client::HomePlace place = held.home.place(h);
    const NodeIndex node = place.node();
    const Duration late = takes(1 - h) ? client::kPutLateMin : Duration{};
    const auto ok =
        move_now(Direction::kPut, *place.area->map, place.offset_bytes[parity], value, late);
    if (ok) {
      arrived = true;
    } else if (ok.error().code() == Errc::kDeadline && !nodes_[node.value()].lost()) {
      missed |= static_cast<std::uint8_t>(1U << h);
    } else {
      failed = node;
    }
  }
  if (!arrived) return Error(Errc::kUnavailable, "no home of it is left");
  if (failed) report_unresponsive(*failed);
  return {};
}

/// As Storages::put(): a value that the job writes between runs.
Result<void> PoolJob::write(Held& held) {
  std::uint8_t missed = 0;
  auto done = put(held, 0, missed);
  for (std::size_t h = 0; done && h < 2; ++h) {
    if ((missed & 1U << h) != 0) report_unresponsive(held.home.place(h).node());
  }
  held.place.at_home = done.ok();
  held.place.stale_homes = 0;
  return done;
}

/// As Storages::get(), and the value is compared.
Result<void> PoolJob::read(const Held& held) {
  std::vector<std::byte> value(held.bytes);
  for (std::size_t h = 0; h < (held.home.doubled() ? 2 : 1); ++h) {
    const client::HomePlace place = held.home.place(h);
    if (held.home.doubled()) {
      const bool lacks = (held.place.stale_homes & 1U << h) != 0;
      if (lacks || nodes_[place.node().value()].lost()) continue;
    }
    if (!move_now(Direction::kGet, *place.area->map, place.offset_bytes[0], value)) continue;
    world_.counts().gets += 1;
    static_cast<void>(check_value(held.number, value, "home " + std::to_string(h)));
    return {};
  }
  return Error(Errc::kUnavailable, "no home of it is left");
}

bool PoolJob::whole(const Held& held) const {
  return !held.nodes ||
         (!nodes_[(*held.nodes)[0].value()].lost() && !nodes_[(*held.nodes)[1].value()].lost());
}

/// As Runtime::repair(), at a step's border. @return false: the job has failed.
bool PoolJob::repair() {
  const TimePoint now = world_.now();
  const auto losses = static_cast<std::uint32_t>(
      std::count_if(nodes_.begin(), nodes_.end(), [](const Node& node) { return node.lost(); }));
  if (losses != losses_seen_) {
    losses_seen_ = losses;
    repair_at_ = now + kRepairAfter;
  }
  const bool halved =
      !std::all_of(held_.begin(), held_.end(), [this](const Held& held) { return whole(held); });
  if (halved && now >= look_at_) {
    use_new_nodes();
    look_at_ = world_.now() + kLookAgain;
    if (!repair_at_) repair_at_ = world_.now();
  }
  const bool drained = std::any_of(nodes_.begin(), nodes_.end(),
                                   [](const Node& node) { return node.drained && !node.lost(); });
  if (drained && !repair_at_) repair_at_ = now;
  if (!repair_at_ || now < *repair_at_ || world_.planted(Planted::kNeverRepaired)) return true;
  repair_at_.reset();
  const auto replaceable = [this](const Held& held) {
    return held.nodes && client::leaving_home(home_pool(), *held.nodes).has_value();
  };
  if (std::none_of(held_.begin(), held_.end(), replaceable)) return true;
  if (running_ && !stop_run()) return false;
  for (Held& held : held_) {
    for (int turns = 0; held.nodes && turns < 2; ++turns) {
      const auto leaving = client::leaving_home(home_pool(), *held.nodes);
      if (!leaving) break;
      if (!replace_home(held, *leaving)) {
        repair_at_ = world_.now() + kLookAgain;
        break;
      }
    }
  }
  std::vector<client::StorageHome> homes;
  for (const Held& held : held_) homes.push_back(held.home);
  replay_->set_homes(homes);
  check_two_domains();
  return true;
}

/// As Storages::repair() and Plan::repair_homes().
bool PoolJob::replace_home(Held& held, const client::LeavingHome& leaving) {
  const std::size_t leaves = leaving.home;
  client::LeavingHome chosen = leaving;
  if (world_.planted(Planted::kRepairIgnoresDomains)) {
    chosen.nodes = present();
    const NodeIndex stays = (*held.nodes)[1 - leaves];
    std::erase(chosen.nodes, stays);
    const auto domains = home_pool().domains();
    std::stable_partition(chosen.nodes.begin(), chosen.nodes.end(),
                          [&](NodeIndex node) { return !domains.are_apart(node, stays); });
  }
  const std::uint64_t bytes = held.values * held.bytes;
  client::ValuePlace place = held.place;
  if (!held.persistent) place = {};
  if (held.input) {
    // The home that stays has an older value. The job's next write goes to it.
    const auto lacks = static_cast<std::uint8_t>(1U << (1 - leaves));
    if (leaving.both || ((held.missed[0] | held.missed[1]) & lacks) != 0) return false;
    place.at_home = true;
  }
  HomeRepair plan = client::plan_home_repair(place, leaving);
  if (plan.how == HomeRepair::How::kLost) return false;
  for (const NodeIndex node : chosen.nodes) {
    auto arena = grant(bytes, {node});
    if (!arena && arena.error().code() == Errc::kExhausted) continue;
    if (!arena) return false;
    const client::HomePlace to{&(*arena)->area, {0, 0}};
    if (world_.planted(Planted::kStaleHomeCopied) && place.stale_homes != 0) {
      plan = {HomeRepair::How::kCopy, 1 - leaves};
    }
    if (plan.how == HomeRepair::How::kCopy && !world_.planted(Planted::kRepairWithoutCopy)) {
      if (!copy(held.home.place(plan.from), to, bytes)) {
        release(*arena);
        return false;
      }
    }
    Arena* const old = std::exchange(held.arenas[leaves], *arena);
    nodes_[(*held.nodes)[leaves].value()].home_bytes -= bytes;
    nodes_[node.value()].home_bytes += bytes;
    (*held.nodes)[leaves] = node;
    name_home(held);
    release(old);
    if (held.persistent) client::home_replaced(held.place, leaving, plan);
    for (std::uint8_t& missed : held.missed) missed &= static_cast<std::uint8_t>(~(1U << leaves));
    world_.counts().repaired += 1;
    world_.trace("repaired", number_, held.number);
    return true;
  }
  return false;
}

/// Where no run is, each home that is to have a value has it, in the daemon's own memory.
void PoolJob::check_homes() {
  for (const Held& held : held_) {
    if (!held.persistent || !held.place.at_home) continue;
    std::size_t has = 0;
    bool reached = false;
    for (std::size_t h = 0; h < (held.home.doubled() ? 2 : 1); ++h) {
      if ((held.place.stale_homes & 1U << h) != 0) continue;
      const client::HomePlace place = held.home.place(h);
      std::vector<std::byte> value;
      for (std::uint64_t at = place.offset_bytes[0]; value.size() < held.bytes;) {
        const client::ArenaExtent& extent = place.area->map->extent_at(at);
        const Node& node = nodes_[extent.node.value()];
        const SimMachine& there = world_.machine(node.machine);
        const auto memory = there.store.find(extent.segment);
        // It may be lost without the job's knowing it.
        const bool has_session = node.control->hello.incarnation == there.incarnation &&
                                 there.truth.contains(node.session.id);
        if (node.lost() || !has_session) break;
        reached = true;
        if (memory == there.store.end()) break;
        const std::uint64_t in = at - extent.begin_bytes;
        const std::uint64_t length = std::min(extent.length_bytes - in, held.bytes - value.size());
        const auto* const from = memory->second->data() + extent.region_offset_bytes + in;
        value.insert(value.end(), from, from + length);
        at += length;
      }
      if (value.size() < held.bytes) continue;
      has += 1;
      if (!check_value(held.number, value, "home " + std::to_string(h))) return;
    }
    if (world_.healed() && reached && has == 0)
      wrong("storage " + std::to_string(held.number) + " has no home");
  }
}

/// Homes lie in two failure domains.
void PoolJob::check_two_domains() {
  const auto domains = home_pool().domains();
  for (const Held& held : held_) {
    if (!held.nodes || domains.are_apart((*held.nodes)[0], (*held.nodes)[1])) continue;
    if (!whole(held)) continue;
    return wrong("two homes of storage " + std::to_string(held.number) + " can be lost together");
  }
}

}  // namespace ho::test
