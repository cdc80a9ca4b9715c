#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "client/pool/pool.hpp"
#include "client/replay/replay.hpp"
#include "client/runtime/homes/home_choice.hpp"
#include "client/runtime/homes/home_heap.hpp"
#include "common/base/result.hpp"

namespace ho::client {

/// A storage's number in its runtime, whichever plans know it.
using StorageNumber = Strong<struct StorageNumberTag, std::uint32_t>;

/// Where a runtime's device bytes come from: an arena, in which plans have placed them, or the job,
/// which places them itself.
///
/// Nothing of the runtime touches device bytes: transfers alone do, by the Transport that the
/// pool's factory chose for the node, or on an accelerator by its streams.
struct DeviceMemory {
  DeviceOptions device;        ///< the device that the memory belongs to
  std::span<std::byte> arena;  ///< empty: take and drop are set
  /// @return memory of so many bytes, or null. The job's thread, within its own calls.
  void* (*take)(void* context, std::uint32_t storage, std::uint64_t bytes) = nullptr;
  /// Takes back memory that take() gave or the job named itself. Called as take().
  void (*drop)(void* context, std::uint32_t storage, void* memory) = nullptr;
  void* context = nullptr;
  /// Homes, on different nodes, of what no plan has given homes: 1 or 2. 2: take and drop are set.
  std::uint32_t copies = 1;

  [[nodiscard]] bool hosted() const { return take != nullptr; }
  /// The arena if the processor can read it, to find out where the job's memory lies; else empty.
  [[nodiscard]] std::span<std::byte> host_arena() const {
    return device.kind == DeviceOptions::Kind::kHost ? arena : std::span<std::byte>();
  }
};

/// The two ranges of a storage with two homes, in the heaps of two nodes.
struct DoubledHome {
  HomeNodes nodes;
  std::array<HomeRange, 2> ranges;
};

/// One storage of a runtime. What a plan's steps alone make has an entry only where the job places
/// device bytes.
struct HeldStorage {
  std::string name;  ///< empty when it is added: "storage N"
  std::uint64_t bytes = 0;
  bool persistent = false;  ///< plans share it by name; else of one plan, or of the job alone
  StorageHome home;         ///< none before the first plan or eviction needs one
  std::optional<HomeRange> range;       ///< what it has of a heap
  std::optional<DoubledHome> doubled;   ///< or of two
  std::optional<std::uint32_t> extent;  ///< or on flash, of its own: what add_flash() gave
  Nearness nearness = Nearness::kNear;
  /// Where its latest value is. Out of date while a plan that knows it runs.
  ValuePlace place;
  std::byte* address = nullptr;  ///< its bytes on the device, where the job places them; as `place`
  bool written = false;          ///< it has had a value; else it is zeros
};

/// A part of a storage's value.
struct ValueRange {
  std::uint64_t offset_bytes = 0;
  std::uint64_t length_bytes = 0;
};

/// The storages of one runtime: their homes, where their values are while no plan runs, and the
/// moves between home, device and the job's memory outside steps.
///
/// Owner thread: the job's. Moves wait for their ends, bounded by the transfers' deadlines. It is
/// wrong to move a value that a running plan may move.
class Storages {
 public:
  /// `pool` and `streams` outlive it, `arena` is what the device memory's arena is registered as.
  /// @param streams  copy streams of the accelerator; null: the device memory is host memory.
  Storages(Pool& pool, const DeviceMemory& device, const LocalHandles& arena,
           DeviceStreams* streams)
      : pool_(pool),
        device_(device),
        arena_(arena),
        streams_(streams),
        near_(pool, Nearness::kNear, device.host_arena(), streams),
        far_(pool, Nearness::kFar, device.host_arena(), streams) {}
  ~Storages();
  Storages(const Storages&) = delete;
  Storages& operator=(const Storages&) = delete;

  [[nodiscard]] StorageNumber add(HeldStorage storage);
  void remove(StorageNumber number);
  /// A persistent one.
  [[nodiscard]] std::optional<StorageNumber> find(std::string_view name) const;
  /// Null: no such storage.
  [[nodiscard]] HeldStorage* get(StorageNumber number);
  [[nodiscard]] HeldStorage& at(StorageNumber number);
  /// Numbers are below this.
  [[nodiscard]] std::uint32_t end() const { return static_cast<std::uint32_t>(held_.size()); }

  [[nodiscard]] HomeHeap& heap(Nearness nearness) {
    return nearness == Nearness::kFar ? far_ : near_;
  }
  /// Two homes for each wish, on the nodes with the fewest bytes of such homes so far that cannot
  /// be lost together. All or none.
  /// @return kExhausted: there are no such two, or they have too little room; the pool's failure.
  [[nodiscard]] Result<std::vector<DoubledHome>> allocate_doubled(
      std::span<const DoubledWish> wishes);
  [[nodiscard]] StorageHome home_of(const DoubledHome& doubled) const;
  void give_back(const DoubledHome& doubled);

  /// Whether the value is not in every home that it could be stored to now, or no home is left.
  [[nodiscard]] bool lacks_home(const HeldStorage& storage);
  /// Whether both are on nodes that are there.
  [[nodiscard]] bool is_whole(const DoubledHome& doubled) const;

  // Nodes that are drained: homes move to others.
  /// Whether homes, or memory or flash for them, lie on such a node.
  [[nodiscard]] bool on_drained() const;
  /// Moves one segment, or gives it back where it is unused. Nothing moves meanwhile.
  /// @param moved  as Pool::leave_drained() has it.
  /// @return false: nothing is left that it can move; kExhausted, or the pool's failure.
  [[nodiscard]] Result<bool> leave_drained(const std::function<void()>& moved);

  // Repair: homes on lost or drained nodes are replaced by others.
  /// As leaving_home().
  [[nodiscard]] std::optional<LeavingHome> leaving(const DoubledHome& doubled) const;
  /// The two homes with another in place of the one that leaves. give_back() ends the one of both
  /// that is not kept. @return kExhausted, or the pool's failure.
  [[nodiscard]] Result<DoubledHome> allocate_instead(const DoubledHome& doubled,
                                                     const LeavingHome& leaving);
  void give_back(const DoubledHome& doubled, std::size_t home);
  /// Replaces a storage's home, and brings the value there first. Between runs.
  /// @return false: no home has the value any more; kExhausted, or the pool's failure.
  [[nodiscard]] Result<bool> repair(HeldStorage& storage, const LeavingHome& leaving);
  /// Copies bytes from one home to another, by way of this process.
  [[nodiscard]] Result<void> copy(const HomePlace& from, const HomePlace& to, std::uint64_t bytes);

  /// Gives it a home in DDR where it has none, or as many as the device memory wants, as far as
  /// there are nodes. @return kExhausted, or the pool's failure.
  [[nodiscard]] Result<void> give_home(HeldStorage& storage);
  /// Moves its home from DDR to flash or back, with its value if that is there. It has one home; no
  /// plan knows the storage, and nothing moves meanwhile. @return as give_home(); kUnsupported: no
  /// node has flash. The home is where it was then.
  [[nodiscard]] Result<void> change_tier(HeldStorage& storage);
  /// It has no home any more.
  void take_home(HeldStorage& storage);
  /// Memory without homes goes back to the pool.
  void release_unused();
  /// DDR that homes have of the pool.
  [[nodiscard]] std::uint64_t ddr_bytes() const;
  // Flash of a drained node moves to one other node, and staging slots with it: storages_flash.cpp.
  /// Drained nodes that have flash of these storages.
  [[nodiscard]] std::vector<NodeIndex> drained_flash() const;
  /// Nodes with room for all flash that lies on `from`, the best first.
  /// @return kExhausted: there are none.
  [[nodiscard]] Result<std::vector<NodeIndex>> nodes_for_flash(NodeIndex from) const;
  /// Whether the storage's home has its latest value.
  using AtHome = std::function<bool(StorageNumber, const HeldStorage&)>;
  /// Copies of extents, which homes lie in after follow_flash() in place of those.
  struct FlashCopies {
    std::vector<FlashMove> moves;
    std::vector<std::uint32_t> copied;  ///< by move: what add_flash() gave for the extent
    std::vector<std::uint32_t> copies;
  };
  /// Copies all flash on `from` to extents on `to`. Nothing moves meanwhile.
  /// @return all or none; kExhausted, or the pool's failure.
  [[nodiscard]] Result<FlashCopies> copy_flash(NodeIndex from, NodeIndex to, const AtHome& at_home);
  /// Homes lie in the copies from now on. No transfer of them is under way.
  void follow_flash(const FlashCopies& copies);
  /// Ends the extents that homes do not lie in: the copies, or after follow_flash() the others.
  void end_copies(const FlashCopies& copies);

  /// Flash of one node, with a window of DDR to reach it by. @return its index; the pool's failure.
  [[nodiscard]] Result<std::uint32_t> add_flash(NodeIndex node, std::uint64_t bytes);
  void remove_flash(std::uint32_t index);
  /// The plan that has asked for this flash ends: it is removed once no home lies in it.
  void leave_flash(std::uint32_t index);
  [[nodiscard]] const FlashArena& flash(std::uint32_t index) const { return *flash_[index]; }

  /// Device -> home. The value is on the device. A storage that has no home gets one: in DDR, or
  /// where that is full on flash, unless the device memory wants two.
  [[nodiscard]] Result<void> store(HeldStorage& storage);
  /// Home -> device. The value is at home, and there is room on the device where `place` or
  /// `address` says. The rest of the value is on the device already.
  [[nodiscard]] Result<void> fetch(HeldStorage& storage, ValueRange range);
  /// A part of the value, home -> the job's memory. The value is at home.
  [[nodiscard]] Result<void> read(HeldStorage& storage, std::uint64_t offset_bytes,
                                  std::span<std::byte> into);
  /// The job's memory -> home, which has the latest value then. It is given a home as by store().
  /// A part that is not all of the value: the value is at home, and homes that lack it go on
  /// lacking it.
  [[nodiscard]] Result<void> write(HeldStorage& storage, std::uint64_t offset_bytes,
                                   std::span<const std::byte> data);
  /// Staging slot -> home. The value is in the slot, which lies in `staging`. A persistent storage
  /// has its home on flash; another one gets a home as by store(), since plans share its own.
  [[nodiscard]] Result<void> store_staged(HeldStorage& storage, const HomeArea& staging);
  /// One copy between a part of an arena and the memory at hand.
  using Copy = std::function<Result<void>(const ArenaMap&, std::uint64_t offset_bytes,
                                          std::span<std::byte>)>;
  /// Puts `part`, at `at_bytes`, into every home in memory that is not on a lost node. One of two
  /// nodes may fail: its home is never read again.
  /// @param parity  the parity of the plan's step: StorageHome::offset_bytes.
  /// @param stale_homes  homes that are left out, a bit each.
  [[nodiscard]] Result<void> put(const StorageHome& home, std::size_t parity,
                                 std::uint64_t at_bytes, std::span<std::byte> part,
                                 const Copy& copy, std::uint8_t stale_homes = 0);
  /// The same, but a home whose node does not answer misses it where the other may have it.
  /// @param hurried  as `copy`, with Transfer::late_after: while there is another home
  /// @param missed  the homes that lack it, a bit each, and are left out; more may join them
  [[nodiscard]] Result<void> put_in_time(const StorageHome& home, std::size_t parity,
                                         std::uint64_t at_bytes, std::span<std::byte> part,
                                         const Copy& copy, const Copy& hurried,
                                         std::uint8_t& missed);
  /// A copy by the drivers, from or to memory registered with `handles`, which outlive it.
  [[nodiscard]] Copy registered(Direction direction, const LocalHandles& handles,
                                Duration late_after = {});

  /// A home of a persistent storage that has not had a value reads as zeros from now on.
  [[nodiscard]] Result<void> zero(HeldStorage& storage);

 private:
  struct Window {
    NodeIndex node;
    std::unique_ptr<Arena> arena;
  };
  [[nodiscard]] Result<void> open_window(NodeIndex node);
  void close_unused_window(NodeIndex node);
  void remove_left_flash();
  [[nodiscard]] std::vector<std::uint32_t> flash_on(NodeIndex node) const;
  void open_spare_window(std::uint64_t bytes);
  /// Drained nodes that have a window and no flash of these storages.
  [[nodiscard]] std::vector<NodeIndex> drained_windows() const;
  [[nodiscard]] Result<void> give_any_home(HeldStorage& storage);
  [[nodiscard]] Result<void> give_flash(HeldStorage& storage);
  [[nodiscard]] Result<void> copy_values(std::span<const FlashMove> moves, const AtHome& at_home);
  [[nodiscard]] Result<void> copy_value(const HeldStorage& storage, StorageHome to);
  [[nodiscard]] Result<void> move(Direction direction, const StorageHome& home,
                                  std::span<std::byte> memory, const Copy& copy,
                                  std::uint8_t stale_homes = 0);
  [[nodiscard]] Result<void> get(const StorageHome& home, std::span<std::byte> memory,
                                 const Copy& copy, std::uint8_t stale_homes);
  [[nodiscard]] Error no_home(const StorageHome& home) const;
  [[nodiscard]] HomePool home_pool() const;
  [[nodiscard]] HomeHeap& heap_on(NodeIndex node);
  [[nodiscard]] Result<void> move_device(Direction direction, HeldStorage& storage,
                                         ValueRange range);
  [[nodiscard]] Result<void> move_host(Direction direction, const StorageHome& home,
                                       std::span<std::byte> memory, std::uint8_t stale_homes = 0);
  [[nodiscard]] Result<void> stage(Direction direction, const FlashPlace& flash,
                                   const ArenaMap& arena, std::uint64_t offset_bytes,
                                   std::uint64_t bytes);

  Pool& pool_;
  const DeviceMemory device_;
  const LocalHandles arena_;
  DeviceStreams* const streams_;
  HomeHeap near_;
  HomeHeap far_;
  /// Doubled homes on one node.
  struct OnNode {
    std::unique_ptr<HomeHeap> heap;
    std::uint64_t bytes = 0;
  };
  [[nodiscard]] std::uint64_t doubled_bytes(NodeIndex node) const {
    const auto at = on_node_.find(node.value());
    return at != on_node_.end() ? at->second.bytes : 0;
  }
  std::map<std::uint32_t, OnNode> on_node_;  ///< by NodeIndex; of nodes that were needed so far
  std::vector<std::optional<HeldStorage>> held_;
  std::vector<std::uint32_t> free_;
  std::unordered_map<std::string, StorageNumber> by_name_;
  std::vector<std::optional<FlashArena>> flash_;
  std::vector<std::uint32_t> left_flash_;  ///< leave_flash()
  std::vector<Window> windows_;  ///< one a node that has flash of these storages, or may get some
  std::optional<NodeIndex> spare_window_;  ///< the node whose window stays, with flash or without
};

}  // namespace ho::client
