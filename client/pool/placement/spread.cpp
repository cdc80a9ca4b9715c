#include "client/pool/placement/spread.hpp"

#include <algorithm>

#include "common/base/check.hpp"
#include "common/base/units.hpp"

namespace ho::client {
namespace {

/// Shares of a small arena begin on multiples of this: no page is split between nodes.
constexpr std::uint64_t kShareAlign = 4 * kKiB;

}  // namespace

std::vector<NodeRoom> nodes_of_arena(std::uint64_t bytes, std::span<const StagingPart> parts,
                                     std::span<const NodeIndex> ring, const AskRooms& ask) {
  std::uint64_t rest_bytes = bytes;
  for (const StagingPart& part : parts) {
    rest_bytes -= std::min(rest_bytes, part.length_bytes);
  }
  std::vector<NodeRoom> asked;
  std::vector<NodeRoom> fixed;
  std::vector<NodeRoom> with_room;
  const auto first = [&](std::size_t count) {
    std::vector<NodeRoom> nodes = fixed;
    const auto others = std::span(with_room).first(std::min(count, with_room.size()));
    nodes.insert(nodes.end(), others.begin(), others.end());
    return nodes;
  };
  for (std::size_t begin = 0; begin < ring.size(); begin += kArenaNodesMin) {
    const auto window = ring.subspan(begin, std::min(kArenaNodesMin, ring.size() - begin));
    std::uint64_t segment_bytes = UINT64_MAX;
    for (NodeRoom& room : ask({window.begin(), window.end()})) {
      segment_bytes = std::min(segment_bytes, room.segment_bytes);
      const bool is_fixed = std::any_of(parts.begin(), parts.end(), [&](const StagingPart& part) {
        return part.node == room.node;
      });
      if (is_fixed || room.free_bytes >= room.segment_bytes) {
        (is_fixed ? fixed : with_room).push_back(room);
      }
      asked.push_back(std::move(room));
    }
    const auto wanted = static_cast<std::size_t>(std::clamp<std::uint64_t>(
        rest_bytes / std::max<std::uint64_t>(1, segment_bytes), kArenaNodesMin, kArenaNodesMax));
    const bool last = begin + window.size() == ring.size();
    if (with_room.size() < wanted && !last) continue;
    for (const std::size_t count : {wanted, with_room.size()}) {
      if (plan_spread(bytes, first(count), parts)) return first(count);
    }
  }
  return asked;
}

std::string describe_shortage(std::uint64_t bytes, std::span<const NodeRoom> nodes) {
  std::uint64_t total = 0;
  std::string list;
  for (const NodeRoom& room : nodes) {
    total += room.free_bytes;
    list += (list.empty() ? "" : ", ") + room.name + " (free " + format_bytes(room.free_bytes) +
            ", in segments of " + format_bytes(room.segment_bytes) + ")";
  }
  return "needs " + format_bytes(bytes) + ", pool has " + format_bytes(total) + " on nodes " + list;
}

Result<std::vector<Stripe>> plan_spread(std::uint64_t bytes, std::span<const NodeRoom> nodes) {
  if (nodes.empty()) return Error(Errc::kUnavailable, "no node of the pool is in reach");
  std::uint64_t unit = UINT64_MAX;
  for (const NodeRoom& room : nodes) unit = std::min(unit, room.segment_bytes);
  if (unit == 0) return Error(Errc::kCorrupt, "a node names segments of 0 bytes");
  const std::uint64_t share = bytes / nodes.size() + (bytes % nodes.size() != 0 ? 1 : 0);
  if (share < unit) unit = std::min(unit, align_up(std::max<std::uint64_t>(share, 1), kShareAlign));

  std::vector<std::uint64_t> left;  // by node, in whole segments, which stripes share
  for (const NodeRoom& room : nodes) {
    left.push_back(room.free_bytes / room.segment_bytes * room.segment_bytes);
  }
  std::vector<Stripe> stripes;
  std::size_t turn = 0;
  for (std::uint64_t placed = 0; placed < bytes;) {
    std::size_t passed = 0;
    while (passed < nodes.size() && left[turn % nodes.size()] == 0) {
      turn += 1;
      passed += 1;
    }
    if (passed == nodes.size()) return Error(Errc::kExhausted, describe_shortage(bytes, nodes));
    const std::size_t chosen = turn % nodes.size();
    turn += 1;
    const std::uint64_t length = std::min({unit, bytes - placed, left[chosen]});
    left[chosen] -= length;
    stripes.push_back({nodes[chosen].node, length});
    placed += length;
  }
  return stripes;
}

Result<std::vector<Stripe>> plan_spread(std::uint64_t bytes, std::span<const NodeRoom> nodes,
                                        std::span<const StagingPart> parts) {
  for (const StagingPart& part : parts) {
    const auto is_its = [&](const NodeRoom& room) { return room.node == part.node; };
    if (std::none_of(nodes.begin(), nodes.end(), is_its)) {
      return Error(Errc::kUnavailable, "a node whose flash the schedule was to use was lost");
    }
  }
  std::vector<NodeRoom> left(nodes.begin(), nodes.end());
  std::uint64_t fixed_bytes = 0;
  for (NodeRoom& room : left) {
    std::uint64_t here = 0;
    for (const StagingPart& part : parts) here += part.node == room.node ? part.length_bytes : 0;
    fixed_bytes += here;
    // In whole segments, so that the rest does not count on what is left of the last one.
    const std::uint64_t taken = align_up(here, room.segment_bytes);
    if (taken > room.free_bytes) return Error(Errc::kExhausted, describe_shortage(bytes, nodes));
    room.free_bytes -= taken;
  }
  HO_CHECK(fixed_bytes <= bytes);
  auto rest = plan_spread(bytes - fixed_bytes, left);
  if (!rest) return rest.error();
  std::vector<Stripe> stripes;
  std::size_t next = 0;
  const auto fill_up = [&](std::uint64_t gap_bytes) {
    while (gap_bytes > 0) {
      HO_CHECK(next < rest->size());
      Stripe& from = (*rest)[next];
      const std::uint64_t length = std::min(gap_bytes, from.length_bytes);
      stripes.push_back({from.node, length});
      gap_bytes -= length;
      from.length_bytes -= length;
      if (from.length_bytes == 0) next += 1;
    }
  };
  std::uint64_t at = 0;
  for (const StagingPart& part : parts) {
    HO_CHECK(part.begin_bytes >= at);
    fill_up(part.begin_bytes - at);
    stripes.push_back({part.node, part.length_bytes});
    at = part.begin_bytes + part.length_bytes;
  }
  fill_up(bytes - at);
  return stripes;
}

}  // namespace ho::client
