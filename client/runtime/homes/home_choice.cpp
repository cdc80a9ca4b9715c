#include "client/runtime/homes/home_choice.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/prng.hpp"
#include "common/base/units.hpp"

namespace ho::client {
namespace {

enum class Side : std::uint8_t { kAfter, kBoth };

/// Brings the `count` nodes to the front that are next to one in the ring. @return their end.
auto nearest_first(const HomePool& pool, NodeId to, Side side, std::size_t count,
                   std::vector<NodeIndex>& nodes) {
  const auto place = [](NodeId id) { return Prng(id.value()).next(); };
  const std::uint64_t at = place(to);
  std::vector<std::pair<std::uint64_t, NodeIndex>> by_distance;
  by_distance.reserve(nodes.size());
  for (const NodeIndex node : nodes) {
    const std::uint64_t after = place(pool.id(node)) - at;
    by_distance.emplace_back(side == Side::kAfter ? after : std::min(after, -after), node);
  }
  const auto kept = static_cast<std::ptrdiff_t>(std::min(count, nodes.size()));
  std::partial_sort(by_distance.begin(), by_distance.begin() + kept, by_distance.end(),
                    [](const auto& a, const auto& b) { return a.first < b.first; });
  for (std::size_t i = 0; i < nodes.size(); ++i) nodes[i] = by_distance[i].second;
  return nodes.begin() + kept;
}

}  // namespace

Result<std::vector<HomeNodes>> choose_homes(const HomePool& pool,
                                            std::span<const DoubledWish> wishes,
                                            std::span<const NodeIndex> full,
                                            std::uint64_t align_bytes,
                                            std::vector<std::uint64_t>& wanted) {
  HO_CHECK(wanted.size() == pool.nodes);
  // A drained node has room at most in what it gave before, and is wanted empty.
  const FailureDomains domains = pool.domains();
  const auto fit = [&](Nearness nearness, std::optional<NodeIndex> other, bool drained) {
    auto nodes = pool.candidates(nearness);
    std::erase_if(nodes, [&](NodeIndex node) {
      const bool too_new = node.value() >= pool.nodes;
      return too_new || (other && !domains.are_apart(node, *other)) ||
             std::find(full.begin(), full.end(), node) != full.end() ||
             (!drained && pool.is_drained(node));
    });
    return nodes;
  };
  const auto take = [&](Nearness nearness, std::optional<NodeIndex> other) {
    auto nodes = fit(nearness, other, false);
    if (nodes.empty()) nodes = fit(Nearness::kAny, other, false);
    if (nodes.empty()) nodes = fit(Nearness::kAny, other, true);
    const auto end = other ? nearest_first(pool, pool.id(*other), Side::kBoth, kHomePartners, nodes)
                           : nearest_first(pool, pool.begin, Side::kAfter, pool.first_nodes, nodes);
    const auto least = std::min_element(nodes.begin(), end, [&](NodeIndex a, NodeIndex b) {
      return pool.home_bytes(a) + wanted[a.value()] < pool.home_bytes(b) + wanted[b.value()];
    });
    return least != end ? std::optional(*least) : std::nullopt;
  };
  std::vector<HomeNodes> homes;
  for (const DoubledWish& wish : wishes) {
    HomeNodes home;
    std::optional<NodeIndex> other;
    for (std::size_t h = 0; h < home.size(); ++h) {
      const auto node = take(wish.nearness[h], other);
      if (!node) {
        return Error(Errc::kExhausted, std::string("two homes of a value need two different ") +
                                           domains.kind() +
                                           " with room; the pool has fewer in reach");
      }
      wanted[node->value()] += align_up(wish.bytes, align_bytes);
      home[h] = *node;
      other = node;
    }
    homes.push_back(home);
  }
  return homes;
}

Result<std::vector<HomeNodes>> place_homes(
    const std::function<HomePool()>& pool, std::span<const DoubledWish> wishes,
    std::uint64_t align_bytes,
    const std::function<Result<void>(NodeIndex, std::uint64_t)>& make_room) {
  std::vector<NodeIndex> full;
  std::size_t first_nodes = kHomeNodes;
  Result<void> shortage;
  for (;;) {
    HomePool now = pool();
    now.first_nodes = first_nodes;
    std::vector<std::uint64_t> wanted(now.nodes, 0);
    auto chosen = choose_homes(now, wishes, full, align_bytes, wanted);
    if (!chosen) return shortage ? chosen.error() : shortage.error();
    Result<void> ok;
    std::uint32_t n = 0;
    for (; n < wanted.size(); ++n) {
      if (wanted[n] > 0) ok = make_room(NodeIndex(n), wanted[n]);
      if (!ok) break;
    }
    if (ok) return chosen;
    switch (ok.error().code()) {
      case Errc::kExhausted:
        full.push_back(NodeIndex(n));
        shortage = ok;
        if (full.size() > first_nodes / 2 && first_nodes < now.nodes) {
          first_nodes *= 2;
          full.clear();
        }
        break;
      case Errc::kUnavailable:
      case Errc::kDeadline: break;
      default: return ok.error();
    }
  }
}

std::optional<LeavingHome> leaving_home(const HomePool& pool, const HomeNodes& nodes) {
  const auto lost = [&](std::size_t h) { return pool.is_lost(nodes[h]); };
  const auto drained = [&](std::size_t h) { return pool.is_drained(nodes[h]); };
  LeavingHome out;
  out.lost = lost(0) || lost(1);
  out.both = lost(0) && lost(1);
  if (!out.lost && !drained(0) && !drained(1)) return std::nullopt;
  out.home = (out.lost ? lost(0) : drained(0)) ? 0 : 1;
  const NodeIndex stays = nodes[1 - out.home];
  // First the nodes: one that comes meanwhile is in no domain yet.
  out.nodes = pool.candidates(Nearness::kAny);
  const FailureDomains domains = pool.domains();
  std::erase_if(out.nodes, [&](NodeIndex node) {
    return (!out.both && !domains.are_apart(node, stays)) || pool.is_drained(node);
  });
  if (out.nodes.empty()) return std::nullopt;
  const auto partners =
      out.both ? nearest_first(pool, pool.begin, Side::kAfter, kHomeNodes, out.nodes)
               : nearest_first(pool, pool.id(stays), Side::kBoth, kHomePartners, out.nodes);
  const auto fewer = [&](NodeIndex a, NodeIndex b) {
    return pool.home_bytes(a) < pool.home_bytes(b);
  };
  std::stable_sort(out.nodes.begin(), partners, fewer);
  std::stable_sort(partners, out.nodes.end(), fewer);
  return out;
}

HomeRepair plan_home_repair(const ValuePlace& place, const LeavingHome& leaving) {
  const std::size_t leaves = leaving.home;
  const std::size_t stays = 1 - leaves;
  const auto has_value = [&](std::size_t h) {
    const bool lost = leaving.both || (leaving.lost && h == leaves);
    return !lost && (place.stale_homes & 1U << h) == 0;
  };
  if (place.at_home && (has_value(stays) || has_value(leaves))) {
    return {HomeRepair::How::kCopy, has_value(stays) ? stays : leaves};
  }
  const bool gone = place.at_home && !place.on_device;
  return {gone ? HomeRepair::How::kLost : HomeRepair::How::kEmpty, 0};
}

void home_replaced(ValuePlace& place, const LeavingHome& leaving, const HomeRepair& repair) {
  const bool copied = repair.how == HomeRepair::How::kCopy;
  // A value that was not copied is on the device; or there is none.
  place.at_home = copied;
  place.stale_homes &= copied ? static_cast<std::uint8_t>(~(1U << leaving.home)) : std::uint8_t{0};
}

}  // namespace ho::client
