// Memory on nodes that an administrator drains moves to others.
#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "client/pool/pool.hpp"
#include "common/base/check.hpp"
#include "common/base/units.hpp"

namespace ho::client {
namespace {

/// Copies between arenas go in parts of this size.
constexpr std::uint64_t kCopyBytes = 4 * kMiB;

bool lies_in(const ArenaExtent& extent, const HeldSegment& segment) {
  return extent.node == segment.node && extent.segment == segment.segment.id;
}

/// The map with the bytes of one segment, in their order, where `fresh` has them.
ArenaMap without_segment(const ArenaMap& map, const HeldSegment& segment, const ArenaMap& fresh) {
  std::vector<ArenaExtent> extents;
  std::uint64_t taken = 0;
  for (const ArenaExtent& extent : map.extents()) {
    if (!lies_in(extent, segment)) {
      extents.push_back(extent);
      continue;
    }
    const std::uint64_t end = taken + extent.length_bytes;
    std::uint64_t begin = extent.begin_bytes;
    while (taken < end) {
      ArenaExtent part = fresh.extent_at(taken);
      const std::uint64_t skipped = taken - part.begin_bytes;
      part.begin_bytes = begin;
      part.length_bytes = std::min(part.length_bytes - skipped, end - taken);
      part.region_offset_bytes += skipped;
      if (part.host != nullptr) part.host += skipped;
      begin += part.length_bytes;
      taken += part.length_bytes;
      extents.push_back(part);
    }
  }
  HO_CHECK(taken == fresh.bytes());
  return ArenaMap(std::move(extents));
}

/// Where an accelerator copies the segment from and to; null: it does not.
const std::byte* host_base(const ArenaMap& map, const HeldSegment& segment) {
  for (const ArenaExtent& extent : map.extents()) {
    if (!lies_in(extent, segment) || extent.host == nullptr) continue;
    return extent.host - extent.region_offset_bytes;
  }
  return nullptr;
}

}  // namespace

Result<void> Pool::copy(const ArenaMap& from, std::uint64_t from_bytes, const ArenaMap& to,
                        std::uint64_t to_bytes, std::uint64_t bytes) {
  constexpr auto kBackground = transport::TrafficClass::kBackground;
  std::vector<std::byte> buffer(std::min(bytes, kCopyBytes));
  auto handles = register_memory(buffer);
  if (!handles) return handles.error();
  Result<void> ok;
  for (std::uint64_t at = 0; ok && at < bytes; at += buffer.size()) {
    const auto part = std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), bytes - at));
    ok = move_registered(Direction::kGet, from, from_bytes + at, part, *handles, {}, kBackground);
    if (ok) {
      ok = move_registered(Direction::kPut, to, to_bytes + at, part, *handles, {}, kBackground);
    }
  }
  unregister_memory(*handles);
  return ok;
}

bool Pool::on_drained(const Arena& arena) const {
  return std::any_of(arena.segments.begin(), arena.segments.end(),
                     [&](const HeldSegment& held) { return is_drained(held.node); });
}

/// Memory of nodes that stay: of one of the kind that `like` is, if one has room, else of another,
/// else of several. Each gives whole segments, so as few as possible are asked.
Result<std::unique_ptr<Arena>> Pool::allocate_elsewhere(std::uint64_t bytes, NodeIndex like,
                                                        DeviceStreams* streams) {
  if (bytes == 0) return std::make_unique<Arena>();
  auto others = nodes_of(Nearness::kAny);
  std::erase_if(others, [&](NodeIndex node) {
    return is_drained(node) || nodes()[node.value()].fault->silent();
  });
  if (others.empty()) return Error(Errc::kExhausted, "all other nodes are lost or drained");
  const auto take_from = [&](const std::vector<NodeIndex>& from) {
    return take(ArenaSpec{bytes, {}, options_.numa.resolve({})}, from, streams);
  };
  auto rooms = sessions_->rooms_of(others).ddr;
  const auto is_alike = [&](const NodeRoom& room) {
    return nodes()[room.node.value()].driver == nodes()[like.value()].driver;
  };
  std::stable_sort(rooms.begin(), rooms.end(), [&](const NodeRoom& a, const NodeRoom& b) {
    return is_alike(a) != is_alike(b) ? is_alike(a) : a.free_bytes > b.free_bytes;
  });
  for (const NodeRoom& room : rooms) {
    if (room.free_bytes < align_up(bytes, room.segment_bytes)) continue;
    auto taken = take_from({room.node});
    if (taken || taken.error().code() != Errc::kExhausted) return taken;
  }
  return take_from(others);
}

Result<bool> Pool::leave_drained(Arena& arena, DeviceStreams* streams,
                                 const std::function<void()>& moved) {
  HO_CHECK(!arena.shared);
  const auto at = std::find_if(arena.segments.begin(), arena.segments.end(),
                               [&](const HeldSegment& held) { return is_drained(held.node); });
  if (at == arena.segments.end()) return false;
  std::uint64_t bytes = 0;
  for (const ArenaExtent& extent : arena.map.extents()) {
    bytes += lies_in(extent, *at) ? extent.length_bytes : 0;
  }
  auto fresh = allocate_elsewhere(bytes, at->node, streams);
  if (!fresh) return fresh.error();
  std::uint64_t copied = 0;
  for (const ArenaExtent& extent : arena.map.extents()) {
    if (!lies_in(extent, *at)) continue;
    const auto ok = copy(arena.map, extent.begin_bytes, (*fresh)->map, copied, extent.length_bytes);
    if (!ok) {
      release(std::move(*fresh));
      return ok.error();
    }
    copied += extent.length_bytes;
  }
  const std::byte* const base = host_base(arena.map, *at);
  std::vector<HeldSegment> left;
  engine_->wait_unused(&arena.map);
  engine_->call([&] {
    arena.map = without_segment(arena.map, *at, (*fresh)->map);
    const auto region = arena.regions.begin() + (at - arena.segments.begin());
    engine_->transport(driver_of(at->node)).detach(*region);
    arena.regions.erase(region);
    left.push_back(std::move(*at));
    arena.segments.erase(at);
    std::move((*fresh)->segments.begin(), (*fresh)->segments.end(),
              std::back_inserter(arena.segments));
    std::move((*fresh)->regions.begin(), (*fresh)->regions.end(),
              std::back_inserter(arena.regions));
    arenas_.erase(fresh->get());
    moved();
  });
  std::move((*fresh)->pinned.begin(), (*fresh)->pinned.end(), std::back_inserter(arena.pinned));
  if (base != nullptr) {
    std::erase_if(arena.pinned, [&](const PinnedSegment& one) { return one.data() == base; });
  }
  sessions_->release(left);
  return true;
}

}  // namespace ho::client
