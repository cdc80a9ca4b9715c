#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/blocks/block_keys.hpp"
#include "client/blocks/blocks_control.hpp"
#include "client/transfer/engine.hpp"
#include "client/transfer/transfer_source.hpp"
#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/system/unique_fd.hpp"

namespace ho::client {

/// A node's block store, as it was opened at one of its daemons.
struct BlocksStore {
  transport::PeerId peer;
  std::unique_ptr<BlocksControl> control;
};

/// A node that has a block store, as Blocks uses it.
struct BlocksNode {
  NodeId id;
  NodeIndex index;
  DriverIndex driver;
  std::shared_ptr<const NodeFault> fault;
  BlocksStore store;
};

enum class BlockOp : std::uint8_t { kGet, kPut, kExists, kRemove };

/// One block of a request. What kExists and kRemove do not need is left out.
struct BlockItem {
  BlockName name;
  std::byte* data = nullptr;  ///< read only for kPut
  std::uint64_t bytes = 0;
  std::uint32_t cost = 1;
  LocalHandles local;
};

/// How one block of a request ended. Exactly one for each.
struct BlockDone {
  std::uint64_t ticket = 0;
  std::uint32_t index = 0;  ///< in the request
  Errc code = Errc::kOk;    ///< kNotFound: a miss, whatever its cause
};

/// A job's blocks in the stores of a pool's nodes. Asynchronous, without a thread of its own:
///
///   get:  locate -> attach new segments -> one-sided gets -> drain() compares checksums
///   put:  submit() makes checksums -> reserve -> attach -> one-sided puts -> settle
///
/// Control's answers come on the I/O threads, transfers end on the transfer thread; both take the
/// mutex, about 50 ns against the 30 us that a block of 256 KiB takes. drain() runs on the job's
/// thread, where it also ends what is past its deadline: the descriptor is a timer, which fires at
/// the next deadline, or at once when something is done.
///
/// A node that let a deadline pass is not asked for kSilence, unless it answers meanwhile: its
/// blocks are misses at once, since a cache that makes its user wait is worse than none. Then one
/// request tries.
///
/// A node's store ends with its daemon. Requests to it fail from then on, until reopened() gives
/// the store of the next daemon. What a request has of a store (blocks, segments, pins) it uses
/// with that one only: the next daemon gives the same numbers to other things.
///
/// Threads: any, except that nothing overlaps close(). Lifecycle: create() -> submit(), drain(),
/// match() -> close() -> destructor.
class Blocks final : public TransferSource, public std::enable_shared_from_this<Blocks> {
 public:
  static constexpr std::size_t kOutstandingMax = 65'536;  ///< blocks submitted and not drained
  /// Requests to a node at a time: far below a daemon's limit for one connection.
  static constexpr std::size_t kActiveMax = 12;
  static constexpr std::size_t kBlocksPerRequest = 1024;
  static constexpr std::size_t kMovingMax = 2048;                ///< transfers handed to the mover
  static constexpr Duration kSilence = std::chrono::seconds(5);  ///< a node is not asked so long
  /// Names of a chain that match() looks at: eight requests to a node at a time.
  static constexpr std::size_t kMatchedMax = 8 * kBlockKeysMax;

  struct Options {
    std::vector<BlocksNode> nodes;
    Duration deadline = std::chrono::seconds(5);  ///< for a request, apart from transfers
    std::chrono::milliseconds pin_time = std::chrono::seconds(30);
  };
  /// `engine` outlives close(). @return kIo, kExhausted: no descriptor.
  [[nodiscard]] static Result<std::shared_ptr<Blocks>> create(Engine& engine, Options options);

  /// Starts a request. The items' memory is the library's until their outcomes came out of drain().
  /// @return the ticket; kBusy: kOutstandingMax, with those before; kInvalidArgument: no items, or
  /// more than kOutstandingMax.
  [[nodiscard]] Result<std::uint64_t> submit(BlockOp op, std::span<const BlockItem> items);
  /// Readable when drain() has work.
  [[nodiscard]] int event_fd() const { return timer_.get(); }
  /// Moves outcomes into `out`. @return how many.
  std::size_t drain(std::span<BlockDone> out);

  struct Matched {
    std::size_t count = 0;  ///< leading names that are stored
    std::uint64_t pin = 0;  ///< keeps them from being evicted, until unpin(); 0: none
  };
  /// Finds the longest run of stored blocks at the beginning of a chain, of kMatchedMax at most.
  /// Waits for the nodes; one that does not answer ends the run.
  [[nodiscard]] Matched match(std::span<const BlockName> chain);
  /// @return false: no such pin.
  bool unpin(std::uint64_t pin);

  /// A block that was not drained yet uses this memory.
  [[nodiscard]] bool uses_memory(const LocalHandles& local);

  /// The node's daemon was restarted, and its store was opened again. Without a control it could
  /// not be: then the node's keys go to the others. Not on a thread of the node's connections.
  void reopened(NodeIndex node, BlocksStore store);
  /// Called once, when close() begins: to end what calls reopened().
  void set_on_close(std::function<void()> ended) { on_close_ = std::move(ended); }

  /// Ends everything; waits for transfers, until their deadlines.
  void close();

  bool feed(Mover& mover, const TickClock& clock) override;
  void transfer_done(Mover& mover, const TransferDone& done, const NodeWords& words,
                     std::uint64_t now_ticks) override;
  /// Its stores are those of the nodes at create().
  void add_node(const std::string& /*label*/) override {}
  /// A lost node's transfers end by themselves, and nothing else stops.
  [[nodiscard]] bool uses(NodeIndex /*node*/) const override { return false; }
  void fail(const std::string& /*what*/, std::optional<NodeIndex> /*node*/) override {}
  void fail_if_stuck() override {}
  void announce_wake(Awake /*awake*/) override {}
  [[nodiscard]] bool cancel(Mover& mover) override;

 private:
  enum class Phase : std::uint8_t { kQueued, kAsking, kAttaching, kMoving, kSettling, kEnded };
  struct Element {
    std::uint32_t index = 0;
    BlockItem item;
    BlockChecksum checksum{};  ///< a put's own; of a get what the bytes must have
    std::uint64_t id = 0;
    SegmentId segment;
    std::uint64_t offset_bytes = 0;
    bool ended = false;
    bool moved = false;
  };
  struct Segment {
    enum class State : std::uint8_t { kAsked, kAttached, kGone } state = State::kAsked;
    ArenaMap map;
    transport::RegionId region;
  };
  struct Store {
    BlocksStore at;
    std::map<SegmentId, Segment> segments;  ///< one whose elements do not move
    std::vector<std::uint64_t> attaching;   ///< batches that wait for segments
    bool attach_sent = false;
  };
  using StorePtr = std::shared_ptr<Store>;
  /// The blocks of one ticket on one node.
  struct Batch {
    BlockOp op = BlockOp::kGet;
    Phase phase = Phase::kQueued;
    std::uint64_t ticket = 0;
    std::uint64_t number = 0;
    std::size_t node = 0;
    StorePtr store;  ///< that it was asked of; null: not yet
    TimePoint deadline;
    bool expired = false;
    std::vector<Element> elements;
    std::size_t open = 0;    ///< without an outcome
    std::size_t moving = 0;  ///< transfers waiting or in flight
  };
  using BatchPtr = std::shared_ptr<Batch>;
  struct Node {
    NodeId id;
    NodeIndex index;
    DriverIndex driver;
    std::shared_ptr<const NodeFault> fault;
    StorePtr store;
    std::deque<BatchPtr> queue;  ///< to be asked
    std::size_t active = 0;
    std::optional<TimePoint> silent_until;  ///< it let a deadline pass, and has not answered since
  };
  struct Move {
    BatchPtr batch;
    std::size_t element = 0;
  };
  /// Segments that a node answered with, for the transfer thread.
  struct Arrival {
    std::size_t node = 0;
    StorePtr store;
    std::vector<GrantedSegment> segments;
  };
  /// The store of a daemon that has ended. Kept until nothing uses it, and never ended on a thread
  /// of its own connection, which its end joins.
  struct Retired {
    DriverIndex driver;
    StorePtr store;
  };
  struct Outcome {
    BlockDone done;
    BatchPtr batch;                    ///< keeps the element; null: no node had it
    const Element* element = nullptr;  ///< whose memory is in use until the outcome is drained
    bool compare = false;              ///< a get, whose bytes are to be compared
  };

  Blocks(Engine& engine, Options options, UniqueFd timer);
  // All below with the lock, unless they say otherwise.
  [[nodiscard]] std::optional<std::size_t> route(const BlockDigest& key) const;
  [[nodiscard]] bool asks(Node& node);
  void heard(std::size_t node);  ///< without the lock
  void pump(Node& node);
  [[nodiscard]] Result<void> ask(const BatchPtr& batch);
  template <typename Value>
  [[nodiscard]] BlocksControl::Answered<Value> on_answer(const BatchPtr& batch,
                                                         void (Blocks::*then)(const BatchPtr&,
                                                                              const Value&));
  void located(const BatchPtr& batch, const std::vector<BlockLocation>& places);
  void asked(const BatchPtr& batch, const std::vector<bool>& answers);
  void reserved(const BatchPtr& batch, const std::vector<BlockSlot>& slots);
  void settled(const BatchPtr& batch, const std::vector<bool>& stored);
  void prepare(const BatchPtr& batch);
  void attach(std::size_t node, const StorePtr& store);
  void attached(std::size_t node, const StorePtr& store, const std::vector<SegmentId>& wanted,
                Result<std::vector<GrantedSegment>> segments);
  void look_again(std::size_t node, Store& store);
  bool take_arrivals();
  void take_segment(const Arrival& arrival, GrantedSegment granted);
  void detach_retired();
  void detach_all(DriverIndex driver, Store& store);
  void moves_ended(const BatchPtr& batch);
  void end(const BatchPtr& batch, Element& element, Errc code);
  void end_all(const BatchPtr& batch, Errc code);
  void finish(const BatchPtr& batch);
  void expire(TimePoint now);
  void arm();
  [[nodiscard]] static Errc failed(BlockOp op, Errc code);

  Engine& engine_;
  const Options options_;
  SteadyClock clock_;
  UniqueFd timer_;
  std::uint32_t owner_ = 0;
  std::atomic<bool> news_{false};  ///< for the transfer thread
  std::function<void()> on_close_;

  std::mutex mutex_;
  std::vector<Node> nodes_;
  std::map<std::uint64_t, BatchPtr> live_;  ///< by age
  std::deque<Move> ready_;                  ///< to be handed to the mover
  std::vector<Arrival> arrivals_;
  std::vector<Retired> retired_;
  std::vector<Move> moving_;  ///< by cookie
  std::vector<std::uint32_t> free_moves_;
  std::deque<Outcome> done_;
  std::map<std::uint64_t, std::vector<std::pair<StorePtr, std::uint64_t>>> pins_;
  std::size_t outstanding_ = 0;
  std::uint64_t next_ticket_ = 1;
  std::uint64_t next_batch_ = 1;
  std::uint64_t next_pin_ = 1;
  bool closing_ = false;
};

}  // namespace ho::client
