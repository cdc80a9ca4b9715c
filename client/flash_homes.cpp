#include "client/flash_homes.hpp"

#include <algorithm>
#include <numeric>

#include "common/base/check.hpp"
#include "common/base/units.hpp"

namespace ho::client {
namespace {

using schedule::HomeTier;
using schedule::Schedule;

constexpr std::uint32_t kNone = UINT32_MAX;
/// Added to the arena for a node all of whose staging slots share bytes with the job's values.
constexpr std::uint64_t kWindowBytes = kMiB;

/// A staging slot: bytes of the local_ddr arena.
struct Slot {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint32_t storage = 0;
};

std::vector<Slot> slots_of(const Schedule& schedule) {
  std::vector<Slot> slots;
  for (const auto* list : {&schedule.cache_ops, &schedule.prologue, &schedule.epilogue}) {
    for (const auto& op : *list) {
      if (!op.ddr_offset_bytes) continue;
      const std::uint64_t bytes = schedule.storages[op.storage.value()].bytes;
      slots.push_back({*op.ddr_offset_bytes, *op.ddr_offset_bytes + bytes, op.storage.value()});
    }
  }
  const auto before = [](const Slot& a, const Slot& b) {
    if (a.begin != b.begin) return a.begin < b.begin;
    return a.end != b.end ? a.end < b.end : a.storage < b.storage;
  };
  const auto same = [](const Slot& a, const Slot& b) {
    return a.begin == b.begin && a.end == b.end && a.storage == b.storage;
  };
  std::sort(slots.begin(), slots.end(), before);
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

Groups group(const Schedule& schedule, const std::vector<Slot>& slots) {
  Groups groups(schedule.storages.size());
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (i > 0 && slots[i].begin < end) groups.join(slots[i].storage, slots[i - 1].storage);
    end = std::max(end, slots[i].end);
  }
  // What is persistent and never moves still has a value that the job writes and reads.
  for (std::uint32_t s = 0; !slots.empty() && s < schedule.storages.size(); ++s) {
    const auto uses = [&](const Slot& slot) { return slot.storage == s; };
    if (!on_flash(schedule, s) || !schedule.storages[s].persistent) continue;
    if (std::none_of(slots.begin(), slots.end(), uses)) groups.join(s, slots.front().storage);
  }
  return groups;
}

/// The node of each group, by its representative.
Result<std::vector<std::uint32_t>> deal(const Schedule& schedule, Groups& groups,
                                        std::span<const FlashRoom> rooms) {
  std::vector<std::uint64_t> bytes(schedule.storages.size(), 0);
  for (std::uint32_t s = 0; s < bytes.size(); ++s) {
    if (!on_flash(schedule, s)) continue;
    bytes[groups.of(s)] += align_up(schedule.storages[s].bytes, kFlashAlign);
  }
  std::vector<std::uint32_t> order;
  for (std::uint32_t s = 0; s < bytes.size(); ++s) {
    if (bytes[s] > 0) order.push_back(s);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return bytes[a] > bytes[b]; });
  std::vector<std::uint64_t> left;
  for (const FlashRoom& room : rooms) left.push_back(room.free_bytes);
  std::vector<std::uint32_t> chosen(schedule.storages.size(), kNone);
  for (const std::uint32_t one : order) {
    const auto most = std::max_element(left.begin(), left.end());
    const auto index = static_cast<std::size_t>(most - left.begin());
    // Homes that share bytes need less than their sum, so too little room is told by the daemon.
    *most -= std::min(*most, bytes[one]);
    chosen[one] = rooms[index].node.value();
  }
  return chosen;
}

/// Packs a node's homes as the schedule has them, without what other nodes hold between them.
std::uint64_t lay_out(const Schedule& schedule, NodeIndex node, FlashPlan& plan) {
  std::vector<std::uint32_t> mine;
  for (std::uint32_t s = 0; s < plan.homes.size(); ++s) {
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

/// Homes in the local_ddr arena whose values outside steps are the job's: persistent ones and
/// INPUTs. Merged, by their begin.
std::vector<Slot> values_in_ddr(const Schedule& schedule) {
  std::vector<Slot> values;
  for (std::uint32_t s = 0; s < schedule.storages.size(); ++s) {
    const Storage& storage = schedule.storages[s];
    const auto& home = schedule.homes[s];
    const bool kept = storage.persistent || storage.kind == StorageKind::kInput;
    if (!kept || !home || home->tier != HomeTier::kLocalDdr) continue;
    values.push_back({home->offset_bytes, home->offset_bytes + storage.bytes, s});
  }
  std::sort(values.begin(), values.end(),
            [](const Slot& a, const Slot& b) { return a.begin < b.begin; });
  std::vector<Slot> merged;
  for (const Slot& value : values) {
    if (merged.empty() || value.begin > merged.back().end) {
      merged.push_back(value);
    } else {
      merged.back().end = std::max(merged.back().end, value.end);
    }
  }
  return merged;
}

bool shares(const std::vector<Slot>& merged, const Slot& slot) {
  const auto first = std::partition_point(
      merged.begin(), merged.end(), [&](const Slot& value) { return value.end <= slot.begin; });
  return first != merged.end() && first->begin < slot.end;
}

}  // namespace

const FlashPlan::Node& FlashPlan::of(NodeIndex node) const {
  const auto at =
      std::find_if(nodes.begin(), nodes.end(), [&](const Node& one) { return one.node == node; });
  HO_CHECK(at != nodes.end());
  return *at;
}

Result<FlashPlan> plan_flash_homes(const Schedule& schedule, std::span<const FlashRoom> rooms) {
  FlashPlan plan;
  plan.homes.resize(schedule.storages.size());
  plan.local_ddr_bytes = schedule.local_ddr_bytes;
  if (schedule.flash_bytes == 0) return plan;
  std::uint64_t total = 0;
  std::string list;
  for (const FlashRoom& room : rooms) {
    total += room.free_bytes;
    list += " " + room.name + " (free " + format_bytes(room.free_bytes) + ")";
  }
  if (rooms.empty()) return Error(Errc::kUnsupported, "flash: no node of the pool has any");
  if (schedule.flash_bytes > total) {
    return Error(Errc::kExhausted,
                 "flash: needs " + format_bytes(schedule.flash_bytes) + ", pool has" + list);
  }
  const std::vector<Slot> slots = slots_of(schedule);
  Groups groups = group(schedule, slots);
  auto dealt = deal(schedule, groups, rooms);
  if (!dealt) return dealt.error();
  for (std::uint32_t s = 0; s < plan.homes.size(); ++s) {
    if (on_flash(schedule, s)) plan.homes[s] = FlashHome{NodeIndex((*dealt)[groups.of(s)]), 0};
  }
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
  const std::vector<Slot> values = values_in_ddr(schedule);
  for (const FlashRoom& room : rooms) {
    FlashPlan::Node node{room.node, lay_out(schedule, room.node, plan), 0, 0};
    if (node.flash_bytes == 0) continue;
    for (const Slot& slot : slots) {
      const bool better = slot.end - slot.begin > node.window_length_bytes;
      if (!better || plan.homes[slot.storage]->node != room.node) continue;
      if (shares(values, slot)) continue;
      node.window_begin_bytes = slot.begin;
      node.window_length_bytes = slot.end - slot.begin;
    }
    if (node.window_length_bytes == 0) {
      node.window_begin_bytes = align_up(plan.local_ddr_bytes, kFlashAlign);
      node.window_length_bytes = kWindowBytes;
      plan.local_ddr_bytes = node.window_begin_bytes + node.window_length_bytes;
      plan.parts.push_back({room.node, node.window_begin_bytes, node.window_length_bytes});
    }
    plan.nodes.push_back(node);
  }
  return plan;
}

}  // namespace ho::client
