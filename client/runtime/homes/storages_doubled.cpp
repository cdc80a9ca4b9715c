// Storages with two homes, on different nodes: where they lie, and moves outside steps.
#include <algorithm>
#include <string>
#include <utility>

#include "client/runtime/homes/storages.hpp"
#include "common/base/check.hpp"
#include "common/base/units.hpp"

namespace ho::client {

HomeHeap& Storages::heap_on(NodeIndex node) {
  auto& heap = on_node_[node.value()].heap;
  if (heap == nullptr) heap = std::make_unique<HomeHeap>(pool_, node, streams_);
  return *heap;
}

HomePool Storages::home_pool() const {
  return {[this](NodeIndex node) { return pool_.nodes()[node.value()].control()->hello().node; },
          pool_.ring_begin(),
          kHomeNodes,
          [this] { return pool_.failure_domains(); },
          pool_.nodes().size(),
          [this](Nearness nearness) { return pool_.candidates(nearness); },
          [this](NodeIndex node) { return pool_.is_lost(node); },
          [this](NodeIndex node) { return pool_.is_drained(node); },
          [this](NodeIndex node) { return doubled_bytes(node); }};
}

Result<std::vector<DoubledHome>> Storages::allocate_doubled(std::span<const DoubledWish> wishes) {
  const auto make_room = [this](NodeIndex node, std::uint64_t bytes) {
    auto reserved = heap_on(node).reserve(bytes);
    const Errc code = reserved ? Errc::kOk : reserved.error().code();
    if (code == Errc::kUnavailable || code == Errc::kDeadline) pool_.give_up(node);
    return reserved;
  };
  const auto chosen =
      place_homes([this] { return home_pool(); }, wishes, HomeHeap::kAlign, make_room);
  if (!chosen) return chosen.error();
  std::vector<DoubledHome> homes;
  for (const HomeNodes& nodes : *chosen) homes.push_back({nodes, {}});
  for (std::size_t i = 0; i < homes.size(); ++i) {
    for (std::size_t h = 0; h < 2; ++h) {
      auto range = heap_on(homes[i].nodes[h]).allocate(wishes[i].bytes);
      HO_CHECK(range.ok());  // reserved
      homes[i].ranges[h] = *range;
      on_node_[homes[i].nodes[h].value()].bytes += range->length_bytes;
    }
  }
  return homes;
}

bool Storages::lacks_home(const HeldStorage& storage) {
  const ValuePlace& place = storage.place;
  if (!place.at_home) return true;
  if (!storage.home.doubled()) return false;
  bool found = false;
  for (std::size_t h = 0; h < 2; ++h) {
    const NodeIndex node = storage.home.place(h).node();
    if ((place.stale_homes & 1U << h) == 0) {
      found = found || !pool_.is_lost(node);
    } else if (pool_.engine().call([&] { return pool_.engine().mover().usable(node); })) {
      return true;
    }
  }
  return !found;
}

bool Storages::is_whole(const DoubledHome& doubled) const {
  return !pool_.is_lost(doubled.nodes[0]) && !pool_.is_lost(doubled.nodes[1]);
}

StorageHome Storages::home_of(const DoubledHome& doubled) const {
  const auto place = [&](std::size_t h) {
    HomePlace one;
    one.area = &on_node_.at(doubled.nodes[h].value()).heap->area(doubled.ranges[h]);
    one.offset_bytes.fill(doubled.ranges[h].begin_bytes);
    return one;
  };
  StorageHome home;
  const HomePlace first = place(0);
  home.area = first.area;
  home.offset_bytes = first.offset_bytes;
  home.second = place(1);
  HO_CHECK(first.node() != home.second.node());
  return home;
}

void Storages::give_back(const DoubledHome& doubled, std::size_t home) {
  const NodeIndex node = doubled.nodes[home];
  on_node_[node.value()].bytes -= doubled.ranges[home].length_bytes;
  heap_on(node).give_back(doubled.ranges[home]);
}

void Storages::give_back(const DoubledHome& doubled) {
  for (std::size_t h = 0; h < doubled.nodes.size(); ++h) give_back(doubled, h);
}

bool Storages::on_drained() const {
  return near_.on_drained() || far_.on_drained() || !drained_flash().empty() ||
         !drained_windows().empty() ||
         std::any_of(on_node_.begin(), on_node_.end(),
                     [](const auto& entry) { return entry.second.heap->on_drained(); });
}

Result<bool> Storages::leave_drained(const std::function<void()>& moved) {
  if (const auto drained = drained_windows(); !drained.empty()) {
    close_unused_window(drained.front());
    return true;
  }
  std::vector<HomeHeap*> heaps{&near_, &far_};
  for (const auto& [node, homes] : on_node_) heaps.push_back(homes.heap.get());
  Result<bool> out = false;
  for (HomeHeap* const heap : heaps) {
    auto left = heap->leave_drained(moved);
    if (left && *left) return true;
    // Another one's may have room.
    if (!left && left.error().code() != Errc::kExhausted) return left;
    if (!left) out = std::move(left);
  }
  return out;
}

std::optional<LeavingHome> Storages::leaving(const DoubledHome& doubled) const {
  return leaving_home(home_pool(), doubled.nodes);
}

Result<DoubledHome> Storages::allocate_instead(const DoubledHome& doubled,
                                               const LeavingHome& leaving) {
  const std::uint64_t bytes = doubled.ranges[leaving.home].length_bytes;
  Result<HomeRange> range = Error(Errc::kExhausted, "");
  for (const NodeIndex node : leaving.nodes) {
    range = heap_on(node).allocate(bytes);
    if (range) {
      DoubledHome out = doubled;
      out.nodes[leaving.home] = node;
      out.ranges[leaving.home] = *range;
      on_node_[node.value()].bytes += bytes;
      return out;
    }
    if (range.error().code() != Errc::kExhausted) break;
  }
  return range.error();
}

Result<void> Storages::copy(const HomePlace& from, const HomePlace& to, std::uint64_t bytes) {
  const auto begin = [](const HomePlace& place) {
    return place.area->begin_bytes + place.offset_bytes[0];
  };
  return pool_.copy(*from.area->map, begin(from), *to.area->map, begin(to), bytes);
}

Result<bool> Storages::repair(HeldStorage& storage, const LeavingHome& leaving) {
  HO_CHECK(storage.doubled.has_value());
  const std::size_t leaves = leaving.home;
  const HomeRepair plan = plan_home_repair(storage.place, leaving);
  if (plan.how == HomeRepair::How::kLost) return false;
  const auto next = allocate_instead(*storage.doubled, leaving);
  if (!next) return next.error();
  const StorageHome home = home_of(*next);
  if (plan.how == HomeRepair::How::kCopy) {
    const HomePlace from = plan.from == leaves ? storage.home.place(leaves) : home.place(plan.from);
    if (auto ok = copy(from, home.place(leaves), storage.bytes); !ok) {
      give_back(*next, leaves);
      return ok.error().at("copying " + storage.name);
    }
  }
  give_back(*storage.doubled, leaves);
  storage.doubled = *next;
  storage.home = home;
  home_replaced(storage.place, leaving, plan);
  return true;
}

Result<void> Storages::put(const StorageHome& home, std::size_t parity, std::uint64_t at_bytes,
                           std::span<std::byte> part, const Copy& copy, std::uint8_t stale_homes) {
  std::uint8_t missed = stale_homes;
  const auto done = put_in_time(home, parity, at_bytes, part, copy, copy, missed);
  for (std::size_t h = 0; done && h < 2; ++h) {
    const bool newly = ((missed ^ stale_homes) & 1U << h) != 0;
    if (newly) pool_.give_up(home.place(h).node());
  }
  return done;
}

Result<void> Storages::put_in_time(const StorageHome& home, std::size_t parity,
                                   std::uint64_t at_bytes, std::span<std::byte> part,
                                   const Copy& copy, const Copy& hurried, std::uint8_t& missed) {
  HO_CHECK(home.area != nullptr && !home.flash);
  const auto into = [&](const HomePlace& place, const Copy& by) {
    return by(*place.area->map, place.area->begin_bytes + place.offset_bytes[parity] + at_bytes,
              part);
  };
  if (!home.doubled()) return into(home.place(0), copy);
  const auto takes = [&](std::size_t h) {
    return (missed & 1U << h) == 0 && !pool_.is_lost(home.place(h).node());
  };
  std::optional<NodeIndex> failed;
  bool arrived = false;
  for (std::size_t h = 0; h < 2; ++h) {
    if (!takes(h)) continue;
    const NodeIndex node = home.place(h).node();
    const auto ok = into(home.place(h), takes(1 - h) ? hurried : copy);
    if (ok) {
      arrived = true;
    } else if (ok.error().code() == Errc::kDeadline && !pool_.is_lost(node)) {
      missed |= static_cast<std::uint8_t>(1U << h);
    } else {
      failed = node;
    }
  }
  if (!arrived) return no_home(home);
  if (failed) pool_.give_up(*failed);
  return {};
}

Result<void> Storages::get(const StorageHome& home, std::span<std::byte> memory, const Copy& copy,
                           std::uint8_t stale_homes) {
  HO_CHECK(home.area != nullptr && !home.flash);
  const auto from = [&](const HomePlace& place) {
    return copy(*place.area->map, place.area->begin_bytes + place.offset_bytes[0], memory);
  };
  if (!home.doubled()) return from(home.place(0));
  for (std::size_t h = 0; h < 2; ++h) {
    if ((stale_homes & 1U << h) != 0 || pool_.is_lost(home.place(h).node())) continue;
    if (from(home.place(h))) return {};
  }
  return no_home(home);
}

Error Storages::no_home(const StorageHome& home) const {
  const auto label = [&](std::size_t h) {
    return pool_.nodes()[home.place(h).node().value()].label;
  };
  return {Errc::kUnavailable, "no home of it is left that has its value; it had homes on " +
                                  label(0) + " and " + label(1)};
}

}  // namespace ho::client
