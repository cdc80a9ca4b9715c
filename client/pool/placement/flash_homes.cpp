#include "client/pool/placement/flash_homes.hpp"

#include <algorithm>
#include <numeric>

#include "common/base/check.hpp"
#include "common/base/units.hpp"

namespace ho::client {
namespace {

using schedule::HomeTier;
using schedule::Schedule;

constexpr std::uint32_t kNone = UINT32_MAX;

/// A staging slot: bytes of the local_ddr arena.
struct Slot {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint32_t storage = 0;
};

bool by_begin(const Slot& a, const Slot& b) {
  if (a.begin != b.begin) return a.begin < b.begin;
  return a.end != b.end ? a.end < b.end : a.storage < b.storage;
}

const FlashPlan::Moved* find_moved(const FlashPlan& plan, std::uint32_t storage,
                                   std::uint64_t from_bytes) {
  const auto at =
      std::partition_point(plan.moved.begin(), plan.moved.end(), [&](const FlashPlan::Moved& one) {
        return one.storage != storage ? one.storage < storage : one.from_bytes < from_bytes;
      });
  const bool is_it =
      at != plan.moved.end() && at->storage == storage && at->from_bytes == from_bytes;
  return is_it ? &*at : nullptr;
}

std::vector<Slot> slots_of(const Schedule& schedule) {
  std::vector<Slot> slots;
  for (const auto* list : {&schedule.cache_ops, &schedule.prologue, &schedule.epilogue}) {
    for (const auto& op : *list) {
      if (!op.ddr_offset_bytes) continue;
      const std::uint64_t bytes = schedule.storages[op.storage.value()].bytes;
      slots.push_back({*op.ddr_offset_bytes, *op.ddr_offset_bytes + bytes, op.storage.value()});
    }
  }
  const auto same = [](const Slot& a, const Slot& b) {
    return a.begin == b.begin && a.end == b.end && a.storage == b.storage;
  };
  std::sort(slots.begin(), slots.end(), by_begin);
  slots.erase(std::unique(slots.begin(), slots.end(), same), slots.end());
  return slots;
}

/// Storages that must be together, by a representative (union-find).
class Groups {
 public:
  explicit Groups(std::size_t count) : parent_(count) {
    std::iota(parent_.begin(), parent_.end(), 0U);
  }
  [[nodiscard]] std::uint32_t of(std::uint32_t storage) {
    while (parent_[storage] != storage) {
      parent_[storage] = parent_[parent_[storage]];
      storage = parent_[storage];
    }
    return storage;
  }
  void join(std::uint32_t a, std::uint32_t b) { parent_[of(a)] = of(b); }

 private:
  std::vector<std::uint32_t> parent_;
};

bool on_flash(const Schedule& schedule, std::uint32_t storage) {
  const auto& home = schedule.homes[storage];
  return home && home->tier == HomeTier::kFlash;
}

using Placed = std::span<const std::optional<FlashHome>>;

bool is_placed(Placed placed, std::uint32_t storage) {
  return storage < placed.size() && placed[storage].has_value();
}

Groups group(const Schedule& schedule, const std::vector<Slot>& slots) {
  Groups groups(schedule.storages.size());
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (i > 0 && slots[i].begin < end) groups.join(slots[i].storage, slots[i - 1].storage);
    end = std::max(end, slots[i].end);
  }
  return groups;
}

/// The bytes assigned to each node so far.
class Dealt {
 public:
  explicit Dealt(std::span<const FlashRoom> rooms) : rooms_(rooms), bytes_(rooms.size(), 0) {}
  /// Gives to one of `among`: to that with least so far of those with room; else to that with most.
  std::uint32_t give(const std::vector<std::size_t>& among, std::uint64_t bytes) {
    const std::size_t to =
        *std::min_element(among.begin(), among.end(), [&](std::size_t a, std::size_t b) {
          const bool a_fits = left(a) >= bytes;
          if (a_fits != (left(b) >= bytes)) return a_fits;
          return a_fits && bytes_[a] != bytes_[b] ? bytes_[a] < bytes_[b] : left(a) > left(b);
        });
    bytes_[to] += bytes;
    return rooms_[to].node.value();
  }
  /// The nodes with least so far.
  [[nodiscard]] std::vector<std::size_t> least(std::size_t count) const {
    std::vector<std::size_t> all(rooms_.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    std::stable_sort(all.begin(), all.end(), [&](std::size_t a, std::size_t b) {
      return bytes_[a] != bytes_[b] ? bytes_[a] < bytes_[b] : left(a) > left(b);
    });
    all.resize(std::min(count, all.size()));
    return all;
  }

 private:
  [[nodiscard]] std::uint64_t left(std::size_t room) const {
    return rooms_[room].free_bytes - std::min(rooms_[room].free_bytes, bytes_[room]);
  }
  std::span<const FlashRoom> rooms_;
  std::vector<std::uint64_t> bytes_;
};

/// The node of each storage, where no group is taken apart over more than `ways` nodes.
/// Homes that share bytes need less than their sum, which is what is counted.
std::vector<std::uint32_t> deal(const Schedule& schedule, Groups& groups,
                                std::span<const FlashRoom> rooms, Placed placed, std::size_t ways) {
  struct Share {
    std::uint64_t bytes = 0;
    std::vector<std::uint32_t> members;
  };
  std::vector<std::uint32_t> chosen(schedule.storages.size(), kNone);
  std::vector<Share> shares(schedule.storages.size());
  std::uint64_t total = 0;
  const auto bytes_of = [&](std::uint32_t s) {
    return align_up(schedule.storages[s].bytes, kFlashAlign);
  };
  for (std::uint32_t s = 0; s < shares.size(); ++s) {
    if (!on_flash(schedule, s)) continue;
    if (is_placed(placed, s)) {
      chosen[s] = placed[s]->node.value();
      continue;
    }
    Share& share = shares[groups.of(s)];
    share.bytes += bytes_of(s);
    share.members.push_back(s);
    total += bytes_of(s);
  }
  std::erase_if(shares, [](const Share& share) { return share.members.empty(); });
  std::stable_sort(shares.begin(), shares.end(),
                   [](const Share& a, const Share& b) { return a.bytes > b.bytes; });
  Dealt dealt(rooms);
  for (Share& share : shares) {
    if (ways == 1 || share.bytes <= total / rooms.size()) {
      const std::uint32_t node = dealt.give(dealt.least(rooms.size()), share.bytes);
      for (const std::uint32_t s : share.members) chosen[s] = node;
      continue;
    }
    const auto among = dealt.least(ways);
    std::stable_sort(share.members.begin(), share.members.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return bytes_of(a) > bytes_of(b); });
    for (const std::uint32_t s : share.members) chosen[s] = dealt.give(among, bytes_of(s));
  }
  return chosen;
}

/// Copies of staging areas: in each group the first storage's node keeps the schedule's slots, the
/// slots of others go behind the arena, those of one node packed as they are.
void take_apart(const Schedule& schedule, Groups& groups, std::vector<Slot>& slots,
                FlashPlan& plan) {
  std::vector<std::uint32_t> keeper(schedule.storages.size(), kNone);
  const auto node_of = [&](const Slot& slot) { return plan.homes[slot.storage]->node.value(); };
  for (const Slot& slot : slots) {
    std::uint32_t& node = keeper[groups.of(slot.storage)];
    if (node == kNone) node = node_of(slot);
  }
  std::vector<std::uint32_t> movers;
  for (const Slot& slot : slots) {
    if (keeper[groups.of(slot.storage)] != node_of(slot)) movers.push_back(node_of(slot));
  }
  std::sort(movers.begin(), movers.end());
  movers.erase(std::unique(movers.begin(), movers.end()), movers.end());
  for (const std::uint32_t node : movers) {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::uint64_t base = 0;
    for (Slot& slot : slots) {  // by their begin
      if (node_of(slot) != node || keeper[groups.of(slot.storage)] == node) continue;
      if (end == 0 || slot.begin >= end) {
        begin = slot.begin;
        base = align_up(plan.local_ddr_bytes, kFlashAlign) + begin % kFlashAlign;
        end = begin;
      }
      end = std::max(end, slot.end);
      plan.local_ddr_bytes = base + (end - begin);
      const std::uint64_t to = base + (slot.begin - begin);
      plan.moved.push_back({slot.storage, slot.begin, to});
    }
  }
  const auto before = [](const FlashPlan::Moved& a, const FlashPlan::Moved& b) {
    return a.storage != b.storage ? a.storage < b.storage : a.from_bytes < b.from_bytes;
  };
  std::sort(plan.moved.begin(), plan.moved.end(), before);
  for (Slot& slot : slots) {
    const FlashPlan::Moved* const moved = find_moved(plan, slot.storage, slot.begin);
    if (moved == nullptr) continue;
    slot.end = moved->to_bytes + (slot.end - slot.begin);
    slot.begin = moved->to_bytes;
  }
  std::sort(slots.begin(), slots.end(), by_begin);
}

/// Packs a node's homes as the schedule has them, without what other nodes hold between them.
std::uint64_t lay_out(const Schedule& schedule, NodeIndex node, Placed placed, FlashPlan& plan) {
  std::vector<std::uint32_t> mine;
  for (std::uint32_t s = 0; s < plan.homes.size(); ++s) {
    if (is_placed(placed, s)) continue;
    if (plan.homes[s] && plan.homes[s]->node == node) mine.push_back(s);
  }
  const auto begin_of = [&](std::uint32_t s) { return schedule.homes[s]->offset_bytes; };
  std::sort(mine.begin(), mine.end(), [&](std::uint32_t a, std::uint32_t b) {
    return begin_of(a) != begin_of(b) ? begin_of(a) < begin_of(b) : a < b;
  });
  std::uint64_t cluster_begin = 0;
  std::uint64_t cluster_end = 0;
  std::uint64_t base = 0;
  std::uint64_t used = 0;
  for (const std::uint32_t s : mine) {
    if (used == 0 || begin_of(s) >= cluster_end) {
      cluster_begin = begin_of(s);
      cluster_end = cluster_begin;
      base = align_up(used, kFlashAlign);
    }
    cluster_end = std::max(cluster_end, begin_of(s) + schedule.storages[s].bytes);
    plan.homes[s]->offset_bytes = base + (begin_of(s) - cluster_begin);
    used = base + (cluster_end - cluster_begin);
  }
  return align_up(used, kFlashAlign);
}

/// Where homes and slots lie when groups are taken apart over `ways` nodes at most.
FlashPlan plan_ways(const Schedule& schedule, std::span<const FlashRoom> rooms,
                    std::vector<Slot> slots, Groups& groups, Placed placed, std::size_t ways) {
  FlashPlan plan;
  plan.homes.resize(schedule.storages.size());
  plan.local_ddr_bytes = schedule.local_ddr_bytes;
  const auto dealt = deal(schedule, groups, rooms, placed, ways);
  for (std::uint32_t s = 0; s < plan.homes.size(); ++s) {
    if (!on_flash(schedule, s)) continue;
    plan.homes[s] = is_placed(placed, s) ? *placed[s] : FlashHome{NodeIndex(dealt[s]), 0};
  }
  take_apart(schedule, groups, slots, plan);
  for (const Slot& slot : slots) {
    const NodeIndex node = plan.homes[slot.storage]->node;
    if (!plan.parts.empty() && plan.parts.back().node == node &&
        slot.begin <= plan.parts.back().begin_bytes + plan.parts.back().length_bytes) {
      StagingPart& part = plan.parts.back();
      part.length_bytes = std::max(part.length_bytes, slot.end - part.begin_bytes);
    } else {
      plan.parts.push_back({node, slot.begin, slot.end - slot.begin});
    }
  }
  for (const FlashRoom& room : rooms) {
    const FlashPlan::Node node{room.node, lay_out(schedule, room.node, placed, plan)};
    if (node.flash_bytes > 0) plan.nodes.push_back(node);
  }
  return plan;
}

bool fits(const FlashPlan& plan, std::span<const FlashRoom> rooms) {
  return std::all_of(plan.nodes.begin(), plan.nodes.end(), [&](const FlashPlan::Node& node) {
    const auto room = std::find_if(rooms.begin(), rooms.end(),
                                   [&](const FlashRoom& one) { return one.node == node.node; });
    return node.flash_bytes <= room->free_bytes;
  });
}

}  // namespace

std::uint64_t usable_flash_bytes(std::span<const FlashPathStatus> paths) {
  std::uint64_t free = 0;
  for (const FlashPathStatus& path : paths) free += path.free_bytes;
  for (const FlashPathStatus& path : paths) {
    if (path.write_bytes_per_day_max == 0) continue;
    const std::uint64_t most = path.write_bytes_per_day_max;
    const std::uint64_t left = most - std::min(most, path.written_today_bytes);
    if (left < free / paths.size()) free = left * paths.size();
  }
  return free;
}

const FlashPlan::Node& FlashPlan::of(NodeIndex node) const {
  const auto at =
      std::find_if(nodes.begin(), nodes.end(), [&](const Node& one) { return one.node == node; });
  HO_CHECK(at != nodes.end());
  return *at;
}

Result<FlashPlan> plan_flash_homes(const Schedule& schedule, std::span<const FlashRoom> rooms,
                                   Placed placed, std::uint64_t copies_bytes_max) {
  FlashPlan plan;
  plan.homes.resize(schedule.storages.size());
  plan.local_ddr_bytes = schedule.local_ddr_bytes;
  if (schedule.flash_bytes == 0) return plan;
  std::uint64_t needed = schedule.flash_bytes;
  for (std::uint32_t s = 0; s < placed.size(); ++s) {
    if (placed[s]) needed -= std::min(needed, align_up(schedule.storages[s].bytes, kFlashAlign));
  }
  std::uint64_t total = 0;
  std::string list;
  for (const FlashRoom& room : rooms) {
    total += room.free_bytes;
    list += " " + room.name + " (free " + format_bytes(room.free_bytes) + ")";
  }
  if (needed > total) {
    return Error(Errc::kExhausted, "flash: needs " + format_bytes(needed) + ", pool has" + list);
  }
  const std::vector<Slot> slots = slots_of(schedule);
  Groups groups = group(schedule, slots);
  for (std::size_t ways = rooms.size(); ways > 1; --ways) {
    plan = plan_ways(schedule, rooms, slots, groups, placed, ways);
    const std::uint64_t added = plan.local_ddr_bytes - schedule.local_ddr_bytes;
    if (fits(plan, rooms) && added <= copies_bytes_max) return plan;
  }
  for (std::size_t ways = 1; ways <= rooms.size(); ++ways) {
    plan = plan_ways(schedule, rooms, slots, groups, placed, ways);
    if (fits(plan, rooms)) return plan;
  }
  return Error(Errc::kExhausted, "flash: needs " + format_bytes(needed) +
                                     " in pieces that no node can hold, pool has" + list);
}

void move_slots(const FlashPlan& plan, Schedule& schedule) {
  for (auto* list : {&schedule.cache_ops, &schedule.prologue, &schedule.epilogue}) {
    for (auto& op : *list) {
      if (!op.ddr_offset_bytes) continue;
      const auto* const moved = find_moved(plan, op.storage.value(), *op.ddr_offset_bytes);
      if (moved != nullptr) op.ddr_offset_bytes = moved->to_bytes;
    }
  }
}

}  // namespace ho::client
