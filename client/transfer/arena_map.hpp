#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/check.hpp"
#include "common/model/address.hpp"
#include "common/transport/driver_names.hpp"
#include "common/transport/transport.hpp"

namespace ho::client {

/// Index of a driver in the mover's list.
using DriverIndex = Strong<struct DriverIndexTag, std::uint32_t>;
/// Index of a node in the pool's list: not the NodeId, which a config chooses.
using NodeIndex = Strong<struct NodeIndexTag, std::uint32_t>;

/// Drivers one client uses at once: nodes of one pool may be reached by all that there are.
inline constexpr std::size_t kDriversMax = transport::kDriverNames.size();
/// Nodes of a pool that one client can use.
inline constexpr std::size_t kNodesMax = 4096;

/// Where a stretch of an arena lies: bytes of one attached segment.
struct ArenaExtent {
  std::uint64_t begin_bytes = 0;  ///< in the arena
  std::uint64_t length_bytes = 0;
  DriverIndex driver;
  NodeIndex node;
  transport::RegionId region;
  std::uint64_t region_offset_bytes = 0;
  SegmentId segment{};  ///< the same bytes by the name that control messages use
  /// Where an accelerator copies them from and to, in this process; null: they are not mapped here.
  std::byte* host = nullptr;
};

/// An arena of pool memory as the job sees it, one run of bytes, over the segments that hold it.
/// A value; extents are sorted, adjoining, and begin at 0.
class ArenaMap {
 public:
  ArenaMap() = default;
  explicit ArenaMap(std::vector<ArenaExtent> extents) : extents_(std::move(extents)) {
    std::uint64_t expected = 0;
    for (const ArenaExtent& extent : extents_) {
      HO_CHECK(extent.begin_bytes == expected && extent.length_bytes > 0);
      expected += extent.length_bytes;
    }
    bytes_ = expected;
  }

  /// The same segment by another region: its node's daemon was restarted. The transfer thread,
  /// while no transfer is under way with that node.
  void set_region(SegmentId segment, NodeIndex node, transport::RegionId region) {
    for (ArenaExtent& extent : extents_) {
      if (extent.segment == segment && extent.node == node) extent.region = region;
    }
  }

  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] std::span<const ArenaExtent> extents() const { return extents_; }

  /// The extent that holds `offset_bytes`, which must lie within the arena. O(log extents).
  [[nodiscard]] const ArenaExtent& extent_at(std::uint64_t offset_bytes) const {
    HO_CHECK(offset_bytes < bytes_);
    const auto after = std::upper_bound(
        extents_.begin(), extents_.end(), offset_bytes,
        [](std::uint64_t at, const ArenaExtent& extent) { return at < extent.begin_bytes; });
    return *(after - 1);
  }

 private:
  std::vector<ArenaExtent> extents_;
  std::uint64_t bytes_ = 0;
};

}  // namespace ho::client
