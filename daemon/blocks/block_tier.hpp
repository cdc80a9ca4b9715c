#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "common/base/strong.hpp"
#include "common/base/units.hpp"

namespace ho::daemon {

/// A block within its tenant. Never reused.
using BlockNumber = Strong<struct BlockNumberTag, std::uint64_t>;
/// A segment of DDR, or an extent of flash, that holds blocks: its number in the tier.
using AreaId = Strong<struct BlockAreaTag, std::uint64_t>;

/// The bytes of a block in one tier.
struct BlockCopy {
  AreaId area;
  std::uint32_t slot = 0;
  std::uint64_t length_bytes = 0;
  bool ready = false;       ///< all bytes are there
  bool may_go = false;      ///< it is in the tier's order of eviction
  std::uint64_t worth = 0;  ///< while ready
  std::uint64_t used = 0;   ///< while ready; grows with each use of any block
};

/// One tier's slots for the blocks of a tenant, and which copy goes next when there is none free.
/// No I/O, no memory, no threads. Owner: BlockIndex.
///
/// Areas are cut into slots of one size, so that slots never fragment. The copy that is worth least
/// goes first; a use makes it worth what the last one evicted was, plus a weight (GreedyDual).
class BlockTier {
 public:
  /// Slots begin at multiples of this.
  static constexpr std::uint64_t kSlotAlign = 4 * kKiB;
  static constexpr std::size_t kSizesMax = 16;  ///< sizes of blocks

  explicit BlockTier(std::uint64_t area_bytes) : area_bytes_(area_bytes) {}

  /// The bytes of a block's slot.
  [[nodiscard]] static std::uint64_t slot_bytes(std::uint64_t length_bytes) {
    return align_up(length_bytes, kSlotAlign);
  }
  [[nodiscard]] static std::uint64_t offset_of(const BlockCopy& copy) {
    return copy.slot * slot_bytes(copy.length_bytes);
  }

  /// Adds an area for blocks of this size.
  void add_area(AreaId area, std::uint64_t length_bytes);
  /// Forgets an area, of which all slots must be free.
  void remove_area(AreaId area);
  [[nodiscard]] std::size_t areas() const { return areas_.size(); }
  [[nodiscard]] bool has_area(AreaId area) const { return areas_.count(area) > 0; }
  /// The size of its blocks, by area.
  [[nodiscard]] std::map<AreaId, std::uint64_t> area_sizes() const;
  /// The sizes of blocks that have areas.
  [[nodiscard]] std::vector<std::uint64_t> sizes() const;
  /// Whether an area for this size may come: the size is known, or one more may be.
  [[nodiscard]] bool takes(std::uint64_t length_bytes) const;
  /// The area that was used longest ago, among areas in which every copy may go; an area without
  /// copies before all others. nullopt: there is none.
  [[nodiscard]] std::optional<AreaId> coldest() const;
  /// An area for another size, in which every copy may go and was last used before the copy of this
  /// size that goes next; of several the one used longest ago. nullopt: there is none.
  [[nodiscard]] std::optional<AreaId> colder(std::uint64_t length_bytes) const;
  [[nodiscard]] std::vector<BlockNumber> blocks_of(AreaId area) const;

  [[nodiscard]] bool has_room(std::uint64_t length_bytes) const;
  [[nodiscard]] std::uint64_t free_slots(std::uint64_t length_bytes) const;
  [[nodiscard]] std::uint64_t slots(std::uint64_t length_bytes) const;
  /// A copy in a free slot, which is not ready. has_room().
  [[nodiscard]] BlockCopy take(std::uint64_t length_bytes, BlockNumber block);
  /// The same in this slot. @return nullopt: there is no such slot, or it is not free.
  [[nodiscard]] std::optional<BlockCopy> take_slot(AreaId area, std::uint32_t slot,
                                                   BlockNumber block);
  /// Frees the slot of a copy that is in no order.
  void give_back(const BlockCopy& copy);

  /// A ready copy may be evicted from now on.
  void let_go(BlockCopy& copy, BlockNumber block);
  /// It may not.
  void hold(BlockCopy& copy, BlockNumber block);
  /// The copy is used. Its worth counts from now.
  void use(BlockCopy& copy, BlockNumber block, std::uint64_t weight, std::uint64_t used);
  /// The copy that goes next.
  [[nodiscard]] std::optional<BlockNumber> cheapest(std::uint64_t length_bytes) const;
  /// Those among the `count` that go next for which it holds, at most `limit`, in this order.
  template <typename Predicate>
  [[nodiscard]] std::vector<BlockNumber> among_next(std::uint64_t length_bytes, std::uint64_t count,
                                                    std::size_t limit, Predicate holds) const {
    std::vector<BlockNumber> out;
    const auto size = sizes_.find(length_bytes);
    if (size == sizes_.end()) return out;
    for (const Rank& rank : size->second.order) {
      if (count-- == 0 || out.size() == limit) break;
      if (holds(rank.block)) out.push_back(rank.block);
    }
    return out;
  }
  /// The copy's slot is wanted, and it goes: others are worth less by now.
  void note_evicted(const BlockCopy& copy);
  /// How many slots were taken so far.
  [[nodiscard]] std::uint64_t taken(std::uint64_t length_bytes) const;
  /// What a copy of this size is worth that is worth nothing.
  [[nodiscard]] std::uint64_t clock(std::uint64_t length_bytes) const;

 private:
  struct Rank {
    std::uint64_t worth = 0;
    std::uint64_t used = 0;
    BlockNumber block;
    AreaId area;
    auto operator<=>(const Rank&) const = default;
  };
  struct Size {
    std::set<Rank> order;
    std::set<AreaId> with_room;
    std::uint64_t slots = 0;
    std::uint64_t free = 0;
    std::uint64_t clock = 0;  ///< the largest worth of one evicted
    std::uint64_t taken = 0;  ///< slots, so far
  };
  struct Area {
    std::uint64_t length_bytes = 0;                  ///< one size for its blocks
    std::vector<std::optional<BlockNumber>> blocks;  ///< by slot; nullopt: free
    std::vector<std::uint32_t> free;
    std::uint32_t held = 0;  ///< copies that are not in the order
    std::uint64_t used = 0;  ///< the latest use of a copy, also of one that has gone since
  };

  [[nodiscard]] static Rank rank_of(const BlockCopy& copy, BlockNumber block) {
    return {copy.worth, copy.used, block, copy.area};
  }
  [[nodiscard]] std::optional<AreaId> coldest_before(std::uint64_t used,
                                                     std::uint64_t except_bytes) const;
  void note_use(const BlockCopy& copy);
  [[nodiscard]] BlockCopy occupy(Area& area, AreaId id, std::uint32_t slot, BlockNumber block);

  std::uint64_t area_bytes_;
  std::map<std::uint64_t, Size> sizes_;  ///< by the blocks' bytes
  std::map<AreaId, Area> areas_;
};

}  // namespace ho::daemon
