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
const std::byte* host_base(const ArenaMap& map, NodeIndex node, SegmentId segment) {
  for (const ArenaExtent& extent : map.extents()) {
    if (extent.node != node || extent.segment != segment || extent.host == nullptr) continue;
    return extent.host - extent.region_offset_bytes;
  }
  return nullptr;
}

std::uint64_t bytes_in(const ArenaMap& map, const HeldSegment& segment) {
  std::uint64_t bytes = 0;
  for (const ArenaExtent& extent : map.extents()) {
    bytes += lies_in(extent, segment) ? extent.length_bytes : 0;
  }
  return bytes;
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

std::vector<NodeIndex> Pool::nodes_that_stay() const {
  auto others = nodes_of(Nearness::kAny);
  std::erase_if(others, [&](NodeIndex node) {
    return is_drained(node) || nodes()[node.value()].fault->silent();
  });
  return others;
}

/// Memory of nodes that stay: of one of the kind that `like` is, if one has room, else of another,
/// else of several. Each gives whole segments, so as few as possible are asked.
Result<std::unique_ptr<Arena>> Pool::allocate_elsewhere(std::uint64_t bytes, NodeIndex like,
                                                        DeviceStreams* streams) {
  if (bytes == 0) return std::make_unique<Arena>();
  const auto others = nodes_that_stay();
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

/// Fills `fresh`, memory of the segment's size in use, with its bytes.
Result<Pool::SegmentCopy> Pool::copy_segment(Arena& arena, const HeldSegment& segment,
                                             Result<std::unique_ptr<Arena>> fresh) {
  if (!fresh) return fresh.error();
  std::uint64_t copied = 0;
  for (const ArenaExtent& extent : arena.map.extents()) {
    if (!lies_in(extent, segment)) continue;
    const auto ok = copy(arena.map, extent.begin_bytes, (*fresh)->map, copied, extent.length_bytes);
    if (!ok) {
      release(std::move(*fresh));
      return ok.error();
    }
    copied += extent.length_bytes;
  }
  SegmentCopy out;
  out.arena = &arena;
  out.node = segment.node;
  out.segment = segment.segment.id;
  out.fresh = std::move(*fresh);
  return out;
}

Result<std::vector<Pool::SegmentCopy>> Pool::copy_segments(Arena& arena, NodeIndex from,
                                                           NodeIndex to, DeviceStreams* streams) {
  HO_CHECK(!arena.shared && from != to);
  std::vector<SegmentCopy> copies;
  for (const HeldSegment& segment : arena.segments) {
    if (segment.node != from) continue;
    const std::uint64_t bytes = bytes_in(arena.map, segment);
    auto made = copy_segment(
        arena, segment, bytes > 0 ? allocate_on(to, bytes, streams) : std::make_unique<Arena>());
    if (!made) {
      discard(std::move(copies));
      return made.error();
    }
    copies.push_back(std::move(*made));
  }
  return copies;
}

void Pool::discard(std::vector<SegmentCopy> copies) {
  for (SegmentCopy& copy : copies) release(std::move(copy.fresh));
}

/// The transfer thread. @return the segment that the copy has replaced.
HeldSegment Pool::take_place(SegmentCopy& copy) {
  Arena& arena = *copy.arena;
  const auto at =
      std::find_if(arena.segments.begin(), arena.segments.end(), [&](const HeldSegment& held) {
        return held.node == copy.node && held.segment.id == copy.segment;
      });
  HO_CHECK(at != arena.segments.end());
  arena.map = without_segment(arena.map, *at, copy.fresh->map);
  const auto region = arena.regions.begin() + (at - arena.segments.begin());
  engine_->transport(driver_of(at->node)).detach(*region);
  arena.regions.erase(region);
  HeldSegment left = std::move(*at);
  arena.segments.erase(at);
  std::move(copy.fresh->segments.begin(), copy.fresh->segments.end(),
            std::back_inserter(arena.segments));
  std::move(copy.fresh->regions.begin(), copy.fresh->regions.end(),
            std::back_inserter(arena.regions));
  arenas_.erase(copy.fresh.get());
  return left;
}

void Pool::replace(std::vector<SegmentCopy> copies, const std::function<void()>& moved) {
  std::vector<HeldSegment> left;
  std::vector<const std::byte*> bases;
  for (const SegmentCopy& copy : copies) {
    engine_->wait_unused(&copy.arena->map);
    bases.push_back(host_base(copy.arena->map, copy.node, copy.segment));
  }
  engine_->call([&] {
    for (SegmentCopy& copy : copies) left.push_back(take_place(copy));
    moved();
  });
  for (std::size_t i = 0; i < copies.size(); ++i) {
    auto& pinned = copies[i].arena->pinned;
    std::move(copies[i].fresh->pinned.begin(), copies[i].fresh->pinned.end(),
              std::back_inserter(pinned));
    if (bases[i] == nullptr) continue;
    std::erase_if(pinned, [&](const PinnedSegment& one) { return one.data() == bases[i]; });
  }
  sessions_->release(left);
}

Result<bool> Pool::leave_drained(Arena& arena, DeviceStreams* streams,
                                 const std::function<void()>& moved) {
  HO_CHECK(!arena.shared);
  const auto at = std::find_if(arena.segments.begin(), arena.segments.end(),
                               [&](const HeldSegment& held) { return is_drained(held.node); });
  if (at == arena.segments.end()) return false;
  auto made =
      copy_segment(arena, *at, allocate_elsewhere(bytes_in(arena.map, *at), at->node, streams));
  if (!made) return made.error();
  std::vector<SegmentCopy> copies;
  copies.push_back(std::move(*made));
  replace(std::move(copies), moved);
  return true;
}

}  // namespace ho::client
