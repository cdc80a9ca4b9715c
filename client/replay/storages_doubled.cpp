// Storages with two homes, on different nodes: where they lie, and moves outside steps.
#include <algorithm>
#include <string>
#include <utility>

#include "client/replay/storages.hpp"
#include "common/base/check.hpp"
#include "common/base/units.hpp"

namespace ho::client {

HomeHeap& Storages::heap_on(NodeIndex node) {
  auto& heap = on_node_[node.value()];
  if (heap == nullptr) heap = std::make_unique<HomeHeap>(pool_, node);
  return *heap;
}

/// Two nodes for each wish, on different machines if the pool has several. @param full  nodes that
/// have no room.
/// @param wanted  gets the bytes that they ask of each node.
Result<std::vector<DoubledHome>> Storages::choose_nodes(std::span<const DoubledWish> wishes,
                                                        const std::vector<NodeIndex>& full,
                                                        std::vector<std::uint64_t>& wanted) const {
  const auto take = [&](std::vector<NodeIndex> nodes, std::optional<NodeIndex> other) {
    const auto unfit = [&](NodeIndex node) {
      const bool too_near = other && !pool_.are_apart(node, *other);
      return too_near || std::find(full.begin(), full.end(), node) != full.end();
    };
    std::erase_if(nodes, unfit);
    if (nodes.empty()) nodes = pool_.candidates(Nearness::kAny);
    std::erase_if(nodes, unfit);
    const auto least = std::min_element(nodes.begin(), nodes.end(), [&](NodeIndex a, NodeIndex b) {
      return doubled_bytes_[a.value()] + wanted[a.value()] <
             doubled_bytes_[b.value()] + wanted[b.value()];
    });
    return least != nodes.end() ? std::optional(*least) : std::nullopt;
  };
  std::vector<DoubledHome> homes;
  for (const DoubledWish& wish : wishes) {
    DoubledHome home;
    std::optional<NodeIndex> other;
    for (std::size_t h = 0; h < home.nodes.size(); ++h) {
      const auto node = take(pool_.candidates(wish.nearness[h]), other);
      if (!node) {
        return Error(Errc::kExhausted,
                     "two homes of a value need two nodes, on different machines if the pool has "
                     "several; it has fewer in reach");
      }
      wanted[node->value()] += align_up(wish.bytes, HomeHeap::kAlign);
      home.nodes[h] = *node;
      other = node;
    }
    homes.push_back(home);
  }
  return homes;
}

Result<std::vector<DoubledHome>> Storages::allocate_doubled(std::span<const DoubledWish> wishes) {
  std::vector<DoubledHome> homes;
  std::vector<NodeIndex> full;
  Result<void> shortage;
  for (;;) {
    std::vector<std::uint64_t> wanted(on_node_.size(), 0);
    auto chosen = choose_nodes(wishes, full, wanted);
    if (!chosen) return shortage ? chosen.error() : shortage.error();
    Result<void> ok;
    std::uint32_t n = 0;
    for (; n < wanted.size(); ++n) {
      if (wanted[n] > 0) ok = heap_on(NodeIndex(n)).reserve(wanted[n]);
      if (!ok) break;
    }
    if (ok) {
      homes = std::move(chosen).value();
      break;
    }
    // Another node takes its part.
    switch (ok.error().code()) {
      case Errc::kExhausted:
        full.push_back(NodeIndex(n));
        shortage = ok;
        break;
      case Errc::kUnavailable:
      case Errc::kDeadline: pool_.give_up(NodeIndex(n)); break;
      default: return ok.error();
    }
  }
  for (std::size_t i = 0; i < homes.size(); ++i) {
    for (std::size_t h = 0; h < 2; ++h) {
      auto range = heap_on(homes[i].nodes[h]).allocate(wishes[i].bytes);
      HO_CHECK(range.ok());  // reserved
      homes[i].ranges[h] = *range;
      doubled_bytes_[homes[i].nodes[h].value()] += range->length_bytes;
    }
  }
  return homes;
}

bool Storages::lacks_home(const HeldStorage& storage) {
  const ValuePlace& place = storage.place;
  if (!place.at_home) return true;
  for (std::size_t h = 0; h < 2 && storage.home.doubled(); ++h) {
    if ((place.stale_homes & 1U << h) == 0) continue;
    const NodeIndex node = storage.home.place(h).node();
    if (pool_.engine().call([&] { return pool_.engine().mover().usable(node); })) return true;
  }
  return false;
}

bool Storages::is_whole(const DoubledHome& doubled) const {
  return !pool_.is_lost(doubled.nodes[0]) && !pool_.is_lost(doubled.nodes[1]);
}

StorageHome Storages::home_of(const DoubledHome& doubled) const {
  const auto place = [&](std::size_t h) {
    HomePlace one;
    one.area = &on_node_[doubled.nodes[h].value()]->area(doubled.ranges[h]);
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

void Storages::give_back(const DoubledHome& doubled) {
  for (std::size_t h = 0; h < doubled.nodes.size(); ++h) {
    const NodeIndex node = doubled.nodes[h];
    doubled_bytes_[node.value()] -= doubled.ranges[h].length_bytes;
    heap_on(node).give_back(doubled.ranges[h]);
  }
}

bool Storages::on_drained() const {
  return near_.on_drained() || far_.on_drained() ||
         std::any_of(on_node_.begin(), on_node_.end(),
                     [](const auto& heap) { return heap != nullptr && heap->on_drained(); });
}

Result<bool> Storages::leave_drained() {
  for (HomeHeap* const heap : {&near_, &far_}) {
    const auto moved = heap->leave_drained();
    if (!moved || *moved) return moved;
  }
  for (const auto& heap : on_node_) {
    if (heap == nullptr) continue;
    const auto moved = heap->leave_drained();
    if (!moved || *moved) return moved;
  }
  return false;
}

bool Storages::can_replace(const DoubledHome& doubled) const {
  return !nodes_for_repair(doubled).empty();
}

/// Which of the two is to be replaced: that on a lost node, or else one on a drained node. With
/// both lost there is no value to copy.
std::optional<std::size_t> Storages::leaving(const DoubledHome& doubled) const {
  for (const bool lost : {true, false}) {
    const auto goes = [&](std::size_t h) {
      return lost ? pool_.is_lost(doubled.nodes[h]) : pool_.is_drained(doubled.nodes[h]);
    };
    if (lost && goes(0) && goes(1)) return std::nullopt;
    for (const std::size_t h : {std::size_t{0}, std::size_t{1}}) {
      if (goes(h)) return h;
    }
  }
  return std::nullopt;
}

/// Nodes that may take the place of the home that leaves, those with the fewest bytes of doubled
/// homes first.
std::vector<NodeIndex> Storages::nodes_for_repair(const DoubledHome& doubled) const {
  const auto goes = leaving(doubled);
  if (!goes) return {};
  const NodeIndex left = doubled.nodes[1 - *goes];
  std::vector<NodeIndex> nodes = pool_.candidates(Nearness::kAny);
  std::erase_if(nodes, [&](NodeIndex node) {
    return !pool_.are_apart(node, left) || pool_.is_drained(node);
  });
  std::stable_sort(nodes.begin(), nodes.end(), [&](NodeIndex a, NodeIndex b) {
    return doubled_bytes_[a.value()] < doubled_bytes_[b.value()];
  });
  return nodes;
}

Result<std::size_t> Storages::replace_lost(DoubledHome& doubled) {
  const auto nodes = nodes_for_repair(doubled);
  HO_CHECK(!nodes.empty());
  const std::size_t lost = *leaving(doubled);
  const std::uint64_t bytes = doubled.ranges[lost].length_bytes;
  Result<HomeRange> range = Error(Errc::kExhausted, "");
  auto node = nodes.begin();
  for (; node != nodes.end(); ++node) {
    range = heap_on(*node).allocate(bytes);
    if (range) break;
    if (range.error().code() != Errc::kExhausted) return range.error();
  }
  if (!range) return range.error();
  heap_on(doubled.nodes[lost]).give_back(doubled.ranges[lost]);
  doubled_bytes_[doubled.nodes[lost].value()] -= bytes;
  doubled_bytes_[node->value()] += bytes;
  doubled.nodes[lost] = *node;
  doubled.ranges[lost] = *range;
  return lost;
}

Result<void> Storages::copy(const HomePlace& from, const HomePlace& to, std::uint64_t bytes) {
  const auto begin = [](const HomePlace& place) {
    return place.area->begin_bytes + place.offset_bytes[0];
  };
  return pool_.copy(*from.area->map, begin(from), *to.area->map, begin(to), bytes);
}

Result<bool> Storages::repair(HeldStorage& storage) {
  HO_CHECK(storage.doubled.has_value());
  ValuePlace& place = storage.place;
  const std::size_t lost = *leaving(*storage.doubled);
  const bool has_other = (place.stale_homes & 1U << (1 - lost)) == 0;
  if (place.at_home && !has_other && !place.on_device) return false;
  const auto replaced = replace_lost(*storage.doubled);
  if (!replaced) return replaced.error();
  storage.home = home_of(*storage.doubled);
  place.at_home = place.at_home && has_other;
  place.stale_homes = 0;
  if (!place.at_home) return true;  // it is on the device, or has no value
  const auto bit = static_cast<std::uint8_t>(1U << lost);
  place.stale_homes = bit;
  const auto copied = copy(storage.home.place(1 - lost), storage.home.place(lost), storage.bytes);
  if (!copied) return copied.error().at("copying " + storage.name);
  place.stale_homes = 0;
  return true;
}

Result<void> Storages::put(const StorageHome& home, std::size_t parity, std::uint64_t at_bytes,
                           std::span<std::byte> part, const Copy& copy) {
  HO_CHECK(home.area != nullptr && !home.flash);
  const auto into = [&](const HomePlace& place) {
    return copy(*place.area->map, place.area->begin_bytes + place.offset_bytes[parity] + at_bytes,
                part);
  };
  if (!home.doubled()) return into(home.place(0));
  std::optional<NodeIndex> missed;
  bool arrived = false;
  for (std::size_t h = 0; h < 2; ++h) {
    const NodeIndex node = home.place(h).node();
    if (pool_.is_lost(node)) continue;
    if (auto ok = into(home.place(h)); ok) {
      arrived = true;
    } else {
      missed = node;
    }
  }
  if (!arrived) return no_home(home);
  if (missed) pool_.give_up(*missed);
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
