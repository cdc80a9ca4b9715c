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

namespace ho::daemon {

/// A reserved or stored block of one tenant. Never reused.
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

/// Where a block's bytes are.
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
  std::uint64_t hits = 0;
  std::uint64_t misses = 0;
  std::uint64_t puts = 0;
  std::uint64_t evictions = 0;
};

/// The blocks of one tenant: which are stored, where, and which goes when there is no room. No I/O,
/// no memory, no threads; the caller passes the time. Owner: the control thread.
///
/// Segments are cut into slots of one size, so that slots never fragment. A block is visible from
/// commit() on:
///
///   (none) --reserve--> reserved --commit--> stored --evict, remove, drop--> (none)
///                       reserved --drop, too old, its session ends--> (none)
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
  /// Slots begin at multiples of this.
  static constexpr std::uint64_t kSlotAlign = 4 * kKiB;
  static constexpr std::size_t kSizesMax = 16;   ///< sizes of blocks in one tenant
  static constexpr std::size_t kModelsMax = 64;  ///< further ones are counted as the last
  static constexpr std::size_t kPinsPerSessionMax = 256;
  static constexpr std::size_t kRememberedPerBlock = 2;  ///< evicted keys in the index
  static constexpr std::uint32_t kUsesMax = 3;           ///< further ones do not count
  static constexpr Duration kReservationMax = std::chrono::seconds(10);

  /// @param salt  a secret: nobody can choose keys that fall into one bucket.
  BlockIndex(std::uint64_t segment_bytes, std::uint64_t salt);
  BlockIndex(const BlockIndex&) = delete;
  BlockIndex& operator=(const BlockIndex&) = delete;

  /// The model's number; makes it.
  [[nodiscard]] ModelIndex model(const std::string& name);
  /// By model, in the order in which they came.
  [[nodiscard]] const std::vector<std::pair<std::string, BlockFigures>>& figures() const {
    return models_;
  }
  [[nodiscard]] std::size_t blocks() const { return visible_.size(); }

  /// Finds a stored block, counts the hit or the miss, and makes it the last to be evicted.
  [[nodiscard]] std::optional<BlockPlace> get(const BlockKey& key, ModelIndex model);
  /// The same without a count or a use.
  [[nodiscard]] bool has(const BlockKey& key) const { return visible_.count(key) > 0; }
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
  /// Reserves a slot for a new block, which an existing key does not need. Two sessions may reserve
  /// for one key; the first commit stores it.
  [[nodiscard]] Reserved reserve(const Want& want, Evict evict, TimePoint now);
  /// Makes a reserved block visible, or frees its slot where the key is stored by now.
  /// @return false: the reservation has ended, or is another session's.
  [[nodiscard]] bool commit(BlockId id, SessionId session, const BlockChecksum& checksum);
  /// Ends a reservation of the session, or a stored block whose bytes are damaged. Without effect
  /// where there is no such block any more.
  void drop(BlockId id, SessionId session);

  struct Pinned {
    PinId pin;
    std::size_t count = 0;  ///< leading keys that are stored; with 0 there is no pin
  };
  /// Pins the longest run of stored blocks at the beginning of `keys`; counts each as a hit, and
  /// the rest as misses. A session with kPinsPerSessionMax pins gets the count without a pin.
  [[nodiscard]] Pinned pin(std::span<const BlockKey> keys, ModelIndex model, SessionId session,
                           TimePoint until);
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
    struct Block {
      BlockKey key;
      BlockChecksum checksum{};
      SegmentId segment;
      std::uint32_t slot = 0;
      std::uint32_t cost = 1;
      std::uint32_t uses = 1;
      ModelIndex model;
      std::uint64_t worth = 0;  ///< above the one evicted last
    };
    std::vector<std::pair<std::string, BlockFigures>> models;
    std::map<SegmentId, std::uint64_t> segments;  ///< with the bytes of their blocks
    std::vector<Block> blocks;                    ///< the one used longest ago first
  };
  [[nodiscard]] Left leave() const;
  /// Makes an empty index so. @return kCorrupt: it contradicts itself, and the index is of no use.
  [[nodiscard]] Result<void> adopt(const Left& left);

  /// Adds a segment for blocks of this size.
  void add_segment(SegmentId segment, std::uint64_t length_bytes);
  /// The segment of the block that would be evicted first, among those without pins and
  /// reservations. nullopt: there is none.
  [[nodiscard]] std::optional<SegmentId> coldest() const;
  /// Evicts all blocks of a segment that coldest() gave, and forgets it.
  void drop_segment(SegmentId segment);
  [[nodiscard]] std::size_t segments() const { return segments_.size(); }
  [[nodiscard]] bool has_segment(SegmentId segment) const { return segments_.count(segment) > 0; }
  /// Whether a block of this size may come: its size is known, or one more may be.
  [[nodiscard]] bool takes(std::uint64_t length_bytes) const;

 private:
  enum class State : std::uint8_t { kReserved, kStored, kLeaving };
  struct Block {
    BlockId id;
    BlockKey key;
    State state = State::kReserved;
    SegmentId segment;
    std::uint32_t slot = 0;
    std::uint32_t pins = 0;
    std::uint32_t cost = 1;
    std::uint32_t uses = 1;
    ModelIndex model;
    SessionId writer;  ///< while kReserved
    TimePoint since;   ///< while kReserved
    std::uint64_t length_bytes = 0;
    BlockChecksum checksum{};
    std::uint64_t worth = 0;
    std::uint64_t used = 0;
  };
  struct CheapestFirst {
    bool operator()(const Block* a, const Block* b) const {
      return a->worth != b->worth ? a->worth < b->worth : a->used < b->used;
    }
  };
  struct Size {
    std::set<Block*, CheapestFirst> order;  ///< stored and not pinned
    std::set<SegmentId> with_room;
    std::uint64_t clock = 0;  ///< the worth of the last one evicted
  };
  struct Segment {
    std::uint64_t length_bytes = 0;  ///< one size for its blocks
    std::vector<Block*> slots;       ///< nullptr: free
    std::vector<std::uint32_t> free;
    std::uint32_t held = 0;  ///< blocks that are not in the order
  };
  struct Pin {
    SessionId session;
    TimePoint until;
    std::vector<BlockId> blocks;
  };
  struct KeyHash {
    std::uint64_t salt = 0;
    std::size_t operator()(const BlockKey& key) const;
  };
  struct Remembered {
    std::uint32_t uses = 0;
    std::uint64_t number = 0;  ///< counts evictions
  };

  [[nodiscard]] BlockFigures& figures_of(const Block& block) {
    return models_[block.model.value()].second;
  }
  [[nodiscard]] BlockPlace place_of(const Block& block) const;
  void hold(Block& block);
  void let_go(Block& block);
  void use(Block& block, bool pins);
  void evict_block(Block& block);
  [[nodiscard]] std::uint32_t recall(const BlockKey& key);
  void take_out(Block& block);
  void forget(Block& block);
  void end_pin(const Pin& pin);

  const std::uint64_t segment_bytes_;
  std::unordered_map<BlockId, Block> blocks_;  ///< one whose elements do not move
  std::unordered_map<BlockKey, Block*, KeyHash> visible_;
  std::unordered_map<BlockKey, Remembered, KeyHash> remembered_;
  std::deque<std::pair<std::uint64_t, BlockKey>> evicted_;  ///< the earliest first
  std::set<BlockId> reserved_;                              ///< by age
  std::map<PinId, Pin> pins_;
  std::map<SessionId, std::size_t> pins_of_;
  std::map<std::uint64_t, Size> sizes_;  ///< by the blocks' bytes
  std::map<SegmentId, Segment> segments_;
  std::vector<std::pair<std::string, BlockFigures>> models_;
  std::uint64_t next_block_ = 1;
  std::uint64_t next_pin_ = 1;
  std::uint64_t uses_ = 0;
  std::uint64_t evictions_ = 0;
};

}  // namespace ho::daemon
