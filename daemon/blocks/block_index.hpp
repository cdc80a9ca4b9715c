#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/base/strong.hpp"
#include "common/base/units.hpp"
#include "common/model/address.hpp"
#include "daemon/blocks/block_tier.hpp"

namespace ho::daemon {

/// A block of one tenant, reserved or stored, while it stays in DDR. A block that comes back from
/// flash has another one: what a job says of the slot that it had before means nothing any more.
using BlockId = Strong<struct BlockIdTag, std::uint64_t>;
/// Blocks that are held for a session. Never reused.
using PinId = Strong<struct PinIdTag, std::uint64_t>;
/// A model of a tenant, as its figures are counted.
using ModelIndex = Strong<struct ModelIndexTag, std::uint32_t>;

/// Names a block within its tenant: a digest that the client makes.
struct BlockKey {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  bool operator==(const BlockKey&) const = default;
};

/// XXH3-128 of a block's bytes, as its writer sent it. The daemon only keeps it.
using BlockChecksum = std::array<std::uint64_t, 2>;

/// Where a tenant's blocks are.
enum class BlockMedium : std::uint8_t { kDdr, kFlash };

/// Where a block's bytes are in DDR.
struct BlockPlace {
  BlockId id;
  SegmentId segment;
  std::uint64_t offset_bytes = 0;
  std::uint64_t length_bytes = 0;
  BlockChecksum checksum{};
};

/// What a tenant's blocks of one model amount to. `blocks` and `bytes` are now, the rest since the
/// tenant came.
struct BlockFigures {
  std::uint64_t blocks = 0;
  std::uint64_t bytes = 0;
  std::uint64_t ddr_bytes = 0;    ///< in DDR
  std::uint64_t flash_bytes = 0;  ///< on flash; a block may be in both
  std::uint64_t hits = 0;
  std::uint64_t flash_hits = 0;  ///< those among the hits that were on flash
  std::uint64_t misses = 0;
  std::uint64_t puts = 0;
  std::uint64_t evictions = 0;

  BlockFigures& operator+=(const BlockFigures& other);
};

/// The blocks of one tenant: which are stored, where, and which goes when there is no room. No I/O,
/// no memory, no threads; the caller passes the time and moves the bytes. Owner: the control
/// thread.
///
/// A block is visible from commit() on:
///
///   (none) --reserve--> reserved --commit--> in DDR --evict, remove, drop--> (none)
///                       reserved --drop, too old, its session ends--> (none)
///
/// With flash it may have a copy in either tier, or in both:
///
///   in DDR --save_next, saved--> in both --its DDR is needed--> on flash --load, loaded--> in both
///
/// The blocks that go next are saved ahead of time, so that room in DDR never waits for flash. One
/// that goes before it was saved is gone.
///
/// Eviction is LRU, weighted by cost and uses (GreedyDual-Frequency: Cherkasova, 1998): a block is
/// worth the worth of the last one evicted plus its cost times its uses, counted anew at each use.
/// The uses of evicted blocks are remembered for a while: one that comes back is worth more.
///
/// A pinned block is never evicted; one that is removed is not found any more, and its slot is free
/// when its pins end.
class BlockIndex {
 public:
  static constexpr std::uint64_t kBlockBytesMin = 4 * kKiB;
  static constexpr std::size_t kModelsMax = 64;  ///< further ones are counted as the last
  static constexpr std::size_t kPinsPerSessionMax = 256;
  static constexpr std::size_t kRememberedPerBlock = 2;  ///< evicted keys in the index
  static constexpr std::uint32_t kUsesMax = 3;           ///< further ones do not count
  static constexpr Duration kReservationMax = std::chrono::seconds(10);
  /// How many of the blocks that go next are saved ahead: one in kAheadShare, and at most
  /// kAheadMax.
  static constexpr std::uint64_t kAheadShare = 8;
  static constexpr std::uint64_t kAheadMax = 512;
  /// One in so many of the slots ahead is taken between two vain searches.
  static constexpr std::uint64_t kSearchShare = 4;
  static constexpr std::array kMedia{BlockMedium::kDdr, BlockMedium::kFlash};

  /// @param salt  a secret: nobody can choose keys that fall into one bucket.
  BlockIndex(std::uint64_t area_bytes, std::uint64_t salt);
  BlockIndex(const BlockIndex&) = delete;
  BlockIndex& operator=(const BlockIndex&) = delete;

  /// The model's number; makes it.
  [[nodiscard]] ModelIndex model(const std::string& name);
  /// By model, in the order in which they came.
  [[nodiscard]] const std::vector<std::pair<std::string, BlockFigures>>& figures() const {
    return models_;
  }
  [[nodiscard]] std::size_t blocks() const { return visible_.size(); }
  [[nodiscard]] std::size_t reservations() const { return reserved_.size(); }

  struct Found {
    BlockNumber block;
    std::optional<BlockPlace> place;  ///< nullopt: it is on flash, and load() brings it
  };
  /// Finds a stored block, and makes it the last to be evicted. Counts a hit in DDR, and a miss; of
  /// one on flash its end counts. A block that is pinned was counted when it was matched.
  [[nodiscard]] std::optional<Found> get(const BlockKey& key, ModelIndex model);
  /// The same without a count or a use.
  [[nodiscard]] bool has(const BlockKey& key) const { return visible_.count(key) > 0; }
  /// A job looks before it gets, and does not get what it did not find.
  void count_miss(ModelIndex model) { models_[model.value()].second.misses += 1; }
  /// @return false: it was not there.
  bool remove(const BlockKey& key);

  struct Want {
    BlockKey key;
    std::uint64_t length_bytes = 0;  ///< kBlockBytesMin .. a segment
    std::uint32_t cost = 1;          ///< to make it again, beside others; at least 1
    ModelIndex model;
    SessionId session;
  };
  enum class Evict : std::uint8_t { kNo, kYes };
  enum class Answer : std::uint8_t { kReserved, kExists, kNoRoom };
  struct Reserved {
    Answer answer = Answer::kNoRoom;
    BlockPlace place;  ///< while kReserved
  };
  /// Reserves a slot for a new block, which an existing key of this size does not need. Two
  /// sessions may reserve for one key; the first commit stores it.
  [[nodiscard]] Reserved reserve(const Want& want, Evict evict, TimePoint now);
  /// Makes a reserved block visible, in place of one of another size; or frees its slot where the
  /// key is stored by now.
  /// @return false: the reservation has ended, or is another session's.
  [[nodiscard]] bool commit(BlockId id, SessionId session, const BlockChecksum& checksum);
  /// Ends a reservation of the session, or a stored block whose bytes are damaged. Without effect
  /// where there is no such block any more.
  void drop(BlockId id, SessionId session);

  struct Pinned {
    PinId pin;
    std::size_t count = 0;              ///< leading keys that are stored; with 0 there is no pin
    std::vector<BlockNumber> on_flash;  ///< pinned and not in DDR
  };
  /// Pins the longest run of stored blocks at the beginning of `keys`; counts each as a hit, and
  /// the rest as misses. A session with kPinsPerSessionMax pins gets the count without a pin.
  [[nodiscard]] Pinned pin(std::span<const BlockKey> keys, ModelIndex model, SessionId session,
                           TimePoint until);
  /// Bytes of pinned blocks that have a slot in DDR.
  [[nodiscard]] std::uint64_t pinned_ddr_bytes() const { return pinned_ddr_bytes_; }
  /// Whether the block is pinned, and on flash only.
  [[nodiscard]] bool is_pinned_on_flash(BlockNumber block) const;
  /// Without effect where there is no such pin of the session.
  void unpin(PinId pin, SessionId session);

  /// Ends all blocks, reservations and pins, and forgets all segments. Counts stay.
  void clear();
  /// Ends the session's reservations and pins.
  void end_session(SessionId session);
  /// Ends reservations that are too old, and pins whose time is over.
  void tick(TimePoint now);

  /// What the next daemon may have of it: stored blocks. Pins and reservations end with this one.
  struct Left {
    /// A block's copy in one tier.
    struct Copy {
      BlockKey key;
      BlockChecksum checksum{};
      AreaId area;
      std::uint32_t slot = 0;
      std::uint32_t cost = 1;
      std::uint32_t uses = 1;
      ModelIndex model;
      std::uint64_t worth = 0;  ///< above the one evicted last
    };
    struct Tier {
      std::map<AreaId, std::uint64_t> areas;  ///< with the bytes of their blocks
      std::vector<Copy> copies;               ///< the one used longest ago first
    };
    std::vector<std::pair<std::string, BlockFigures>> models;
    std::array<Tier, kMedia.size()> tiers;  ///< by medium

    [[nodiscard]] Tier& tier(BlockMedium medium) { return tiers[static_cast<std::size_t>(medium)]; }
    [[nodiscard]] const Tier& tier(BlockMedium medium) const {
      return tiers[static_cast<std::size_t>(medium)];
    }
    /// Takes areas out, with their copies.
    void drop_areas(BlockMedium medium, const std::set<AreaId>& areas);
  };
  /// How much of the flash is left at most.
  struct LeaveMost {
    std::size_t areas = SIZE_MAX;
    std::size_t copies = SIZE_MAX;
  };
  [[nodiscard]] Left leave() const { return leave(LeaveMost()); }
  /// Where it is not all of the flash, the areas whose copies were used last.
  [[nodiscard]] Left leave(const LeaveMost& flash) const;
  /// Makes an empty index so. @return kCorrupt: it contradicts itself, and the index is of no use.
  [[nodiscard]] Result<void> adopt(const Left& left);

  /// Adds a segment, or an extent of flash, for blocks of this size.
  void add_area(BlockMedium medium, AreaId area, std::uint64_t length_bytes);
  /// As BlockTier::coldest().
  [[nodiscard]] std::optional<AreaId> coldest(BlockMedium medium) const {
    return tier(medium).coldest();
  }
  /// Whether a copy of this size may be evicted.
  [[nodiscard]] bool has_victim(BlockMedium medium, std::uint64_t length_bytes) const {
    return tier(medium).cheapest(length_bytes).has_value();
  }
  /// As BlockTier::colder().
  [[nodiscard]] std::optional<AreaId> colder(BlockMedium medium, std::uint64_t length_bytes) const {
    return tier(medium).colder(length_bytes);
  }
  /// Evicts all copies of an area that coldest() or colder() gave, and forgets it.
  void drop_area(BlockMedium medium, AreaId area);
  [[nodiscard]] std::size_t areas(BlockMedium medium) const { return tier(medium).areas(); }
  [[nodiscard]] bool has_area(BlockMedium medium, AreaId area) const {
    return tier(medium).has_area(area);
  }
  /// The sizes of blocks that have room in DDR.
  [[nodiscard]] std::vector<std::uint64_t> sizes() const { return tier(BlockMedium::kDdr).sizes(); }
  /// Whether a block of this size may come: its size is known, or one more may be.
  [[nodiscard]] bool takes(std::uint64_t length_bytes) const;

  /// Bytes to be moved between the tiers.
  struct Move {
    BlockNumber block;
    AreaId segment;
    std::uint64_t segment_offset_bytes = 0;
    AreaId extent;
    std::uint64_t extent_offset_bytes = 0;
    std::uint64_t bytes = 0;  ///< the whole slot
  };
  /// Blocks of this size that should be saved now, at most `limit`: those that go next, where there
  /// is little room. After a vain search it does not look again before some more slots are taken.
  [[nodiscard]] std::vector<BlockNumber> unsaved(std::uint64_t length_bytes, std::size_t limit);
  /// How many blocks of this size are to be saved ahead, and may be under way at a time.
  [[nodiscard]] std::uint64_t ahead(std::uint64_t length_bytes) const;
  /// Takes a slot on flash for a block that unsaved() gave; it stays in DDR until saved().
  /// @return nullopt: there is no slot.
  [[nodiscard]] std::optional<Move> save(BlockNumber block, Evict evict);
  /// The copy on flash is made, or could not be.
  void saved(BlockNumber block, bool done);
  /// The blocks that a load may evict: none, those that are saved, or any.
  enum class Victim : std::uint8_t { kNone, kSaved, kAny };
  struct Load {
    enum class Answer : std::uint8_t { kBegun, kNoRoom, kGone } answer = Answer::kGone;
    Move move;                       ///< while kBegun
    std::uint64_t length_bytes = 0;  ///< while kNoRoom: the block's
  };
  /// Takes a slot in DDR for a block that get() found on flash. kGone: it is not there any more.
  [[nodiscard]] Load load(BlockNumber block, Victim victim);
  /// How a load ended: kLost means that the bytes on flash cannot be read, and the block is gone.
  enum class Loaded : std::uint8_t { kDone, kNotNow, kLost };
  /// @return the place while kDone; nullopt: also where the block was removed meanwhile.
  std::optional<BlockPlace> loaded(BlockNumber block, Loaded how);
  /// Keeps a stored block from being evicted until release().
  void hold(BlockNumber block) { hold(blocks_.at(block)); }
  void release(BlockNumber block) { let_go(blocks_.at(block)); }
  /// Counts the end of a get that had to load.
  void count_load(ModelIndex model, BlockNumber block, bool hit);

 private:
  enum class State : std::uint8_t { kReserved, kStored, kLeaving };
  struct Block {
    BlockNumber number;
    BlockKey key;
    State state = State::kReserved;
    std::uint32_t holds = 0;  ///< pins, moves and answers that keep it
    std::uint32_t pins = 0;   ///< of the holds
    std::uint32_t stays = 0;  ///< in DDR, before this one
    std::uint32_t cost = 1;
    std::uint32_t uses = 1;
    ModelIndex model;
    SessionId writer;  ///< while kReserved
    TimePoint since;   ///< while kReserved
    std::uint64_t length_bytes = 0;
    BlockChecksum checksum{};
    std::array<std::optional<BlockCopy>, kMedia.size()> copies;  ///< by medium

    [[nodiscard]] std::optional<BlockCopy>& copy(BlockMedium medium) {
      return copies[static_cast<std::size_t>(medium)];
    }
    [[nodiscard]] const std::optional<BlockCopy>& copy(BlockMedium medium) const {
      return copies[static_cast<std::size_t>(medium)];
    }
    [[nodiscard]] bool ready(BlockMedium medium) const {
      return copy(medium) && copy(medium)->ready;
    }
  };
  struct Pin {
    SessionId session;
    TimePoint until;
    std::vector<BlockNumber> blocks;
  };
  struct KeyHash {
    std::uint64_t salt = 0;
    std::size_t operator()(const BlockKey& key) const;
  };
  struct Remembered {
    std::uint32_t uses = 0;
    std::uint64_t number = 0;  ///< counts evictions
  };

  [[nodiscard]] BlockTier& tier(BlockMedium medium) {
    return tiers_[static_cast<std::size_t>(medium)];
  }
  [[nodiscard]] const BlockTier& tier(BlockMedium medium) const {
    return tiers_[static_cast<std::size_t>(medium)];
  }
  [[nodiscard]] BlockFigures& figures_of(const Block& block) {
    return models_[block.model.value()].second;
  }
  [[nodiscard]] Block* find(BlockId id);
  [[nodiscard]] BlockPlace place_of(const Block& block) const;
  void hold(Block& block);
  void let_go(Block& block);
  void use(Block& block, bool pins);
  void make_ready(Block& block, BlockMedium medium);
  void count(const Block& block, BlockMedium medium, bool more);
  void drop_copy(Block& block, BlockMedium medium);
  void evict(Block& block, BlockMedium medium);
  [[nodiscard]] bool make_room(BlockMedium medium, std::uint64_t length_bytes, Evict evict);
  void give_up(BlockNumber victim, BlockMedium medium);
  [[nodiscard]] Move move_of(const Block& block) const;
  [[nodiscard]] std::uint32_t recall(const BlockKey& key);
  void take_out(Block& block);
  [[nodiscard]] Left::Tier leave(BlockMedium medium, const LeaveMost& most) const;
  [[nodiscard]] bool adopt(const Left::Copy& from, BlockMedium medium);
  /// unsaved() does not look for blocks of this size before some more slots are taken.
  void put_off_search(std::uint64_t length_bytes);
  void forget(Block& block);
  void end_pin(const Pin& pin);

  const std::uint64_t area_bytes_;
  std::array<BlockTier, kMedia.size()> tiers_;     ///< by medium
  std::unordered_map<BlockNumber, Block> blocks_;  ///< one whose elements do not move
  std::unordered_map<BlockKey, Block*, KeyHash> visible_;
  std::unordered_map<BlockKey, Remembered, KeyHash> remembered_;
  std::deque<std::pair<std::uint64_t, BlockKey>> evicted_;  ///< the earliest first
  std::set<BlockNumber> reserved_;                          ///< by age
  std::uint64_t pinned_ddr_bytes_ = 0;
  std::map<PinId, Pin> pins_;
  std::map<SessionId, std::size_t> pins_of_;
  std::vector<std::pair<std::string, BlockFigures>> models_;
  std::map<std::uint64_t, std::uint64_t> search_at_;  ///< by size: unsaved() looks at so many taken
  std::uint64_t next_block_ = 1;
  std::uint64_t next_pin_ = 1;
  std::uint64_t uses_ = 0;
  std::uint64_t evictions_ = 0;
};

}  // namespace ho::daemon
