#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "client/pool/bell_thread.hpp"
#include "client/pool/leavers.hpp"
#include "client/pool/paths/factory.hpp"
#include "client/pool/paths/path_finder.hpp"
#include "client/pool/pinned_segment.hpp"
#include "client/pool/placement/failure_domains.hpp"
#include "client/pool/placement/nearness.hpp"
#include "client/pool/sessions.hpp"
#include "client/transfer/engine.hpp"
#include "client/transfer/transfer.hpp"
#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/system/numa.hpp"

namespace ho::client {

/// On which NUMA node of its own machine a job would like pool memory to lie.
struct NumaWish {
  enum class Kind : std::uint8_t { kNear, kAny, kNode };
  Kind kind = Kind::kNear;  ///< kNear: where the job's own memory is, or it runs
  NumaNode node;            ///< of kNode
  /// "auto" (also empty), "off" or a node's number. @return kInvalidArgument, also for a node
  /// that this process may take no memory from.
  [[nodiscard]] static Result<NumaWish> parse(const std::string& text);
  /// The node, as things are now. @param memory  what pool memory is for; may be empty.
  [[nodiscard]] std::optional<NumaNode> resolve(std::span<const std::byte> memory) const;
};

struct PoolOptions {
  SessionOptions sessions;
  AllowedDrivers transport;  ///< which may carry the data
  DriverOptions drivers;
  NumaWish numa;
  Duration op_deadline = std::chrono::milliseconds(1500);
  std::uint64_t link_bytes_per_s = 0;  ///< limit of gets and of puts, all nodes together; 0: none
  Duration repair_after =
      std::chrono::seconds(60);  ///< a loss, values get their second homes again
};

/// An arena of pool memory, attached and ready for transfers. Made and ended by its Pool.
struct Arena {
  ArenaMap map;
  std::vector<HeldSegment> segments;
  std::vector<transport::RegionId> regions;  ///< parallel to segments
  std::vector<PinnedSegment> pinned;         ///< those of this node, for an accelerator
  bool shared = false;  ///< another session's, for reading: given back by detaching only
  bool stale = false;   ///< shared, by a daemon that has ended since; the transfer thread's
};

/// An extent of one node's flash. Made and ended by a Pool.
struct FlashArena {
  NodeIndex node;
  FlashExtent extent;
};

/// Everything one job holds of a pool: sessions, transports and the transfer thread.
///
/// Threads: any, except that a job's own calls on one arena do not overlap its end. Lifecycle:
/// connect() -> arenas, registrations, transfers -> all of them ended -> destructor.
class Pool {
 public:
  /// @return kInvalidArgument, kUnavailable, kDeadline, kUnsupported (a driver that was asked for
  /// and cannot be used, with the reason).
  [[nodiscard]] static Result<std::unique_ptr<Pool>> connect(const PoolOptions& options);

  [[nodiscard]] Engine& engine() { return *engine_; }
  /// Where plans note their steps.
  [[nodiscard]] Progress& progress() { return *progress_; }
  /// "local", "ucx", "ofi", "tcp" or "mixed".
  [[nodiscard]] const std::string& transport_name() const { return transport_name_; }
  [[nodiscard]] const GrowOnly<NodeSession>& nodes() const { return sessions_->nodes(); }
  /// Takes in nodes that the pool has now and the job has not, if a driver that the job uses
  /// reaches them; logs why one is not taken. As Sessions::find_new() says. Any thread; with kRest
  /// it returns at once where another one looks.
  void use_new_nodes(TriedNodes tried);

  [[nodiscard]] DriverIndex driver_of(NodeIndex node) const {
    return driver_of(nodes()[node.value()]);
  }
  /// As Sessions::await_control().
  [[nodiscard]] std::shared_ptr<ControlClient> await_control(NodeIndex node) const {
    return sessions_->await_control(nodes()[node.value()]);
  }

  /// Calls `resumed` after each restart of the node's daemon that the job's session outlives, on
  /// the thread that resumes sessions: it must be brief, and not begin or end listening.
  /// @return a number for end_listening().
  [[nodiscard]] std::uint64_t listen(NodeIndex node, std::function<void()> resumed);
  /// Waits for a call under way.
  void end_listening(std::uint64_t listener);

  /// Nodes that are not lost, of one kind.
  [[nodiscard]] std::vector<NodeIndex> nodes_of(Nearness nearness) const;
  /// As Sessions::ring_begin().
  [[nodiscard]] NodeId ring_begin() const { return sessions_->ring_begin(); }
  /// Nodes for an arena: those of the kind, or all if the kind has none.
  [[nodiscard]] std::vector<NodeIndex> candidates(Nearness nearness) const;
  /// One segment of each node that an arena on these takes: they give no less.
  [[nodiscard]] std::uint64_t segment_bytes_of(const std::vector<NodeIndex>& nodes) const;
  /// As Sessions::rooms_of().
  [[nodiscard]] Rooms rooms(const std::vector<NodeIndex>& nodes) {
    return sessions_->rooms_of(nodes);
  }
  /// Whether the job has lost the node permanently.
  [[nodiscard]] bool is_lost(NodeIndex node) const {
    return nodes()[node.value()].fault->reason() != FaultReason::kNone;
  }
  /// Whether nodes are left, and none of them has answered its last request.
  [[nodiscard]] bool is_silent() const;
  /// As Sessions::lost().
  [[nodiscard]] Error lost() const { return sessions_->lost(); }
  /// As Sessions::is_drained().
  [[nodiscard]] bool is_drained(NodeIndex node) const { return sessions_->is_drained(node); }
  /// As Sessions::notice().
  [[nodiscard]] Notice notice() const { return sessions_->notice(); }
  /// What leaves drained nodes without a runtime.
  [[nodiscard]] Leavers& leavers() { return *leavers_; }
  /// The failure domains of all nodes, lost ones too, as they were when their sessions were opened.
  [[nodiscard]] FailureDomains failure_domains() const;
  /// How many nodes the job has lost.
  [[nodiscard]] std::uint32_t losses() const;
  [[nodiscard]] Duration repair_after() const { return options_.repair_after; }
  /// Reports the node as lost: its bytes are out of date, since it missed a write that another node
  /// took.
  void give_up(NodeIndex node) { nodes()[node.value()].fault->report(FaultReason::kUnresponsive); }

  /// Optional wishes for pool memory.
  struct Where {
    Nearness nearness = Nearness::kAny;
    std::span<const StagingPart> parts = {};
    std::span<const std::byte> user = {};  ///< the job's memory that it is for; empty: not known
    DeviceStreams* streams =
        nullptr;  ///< the accelerator that will copy from and to it; null: none
  };
  /// Pool memory, zeroed. @return kExhausted: "needs X, pool has Y on nodes ...".
  [[nodiscard]] Result<std::unique_ptr<Arena>> allocate(std::uint64_t bytes, const Where& where);
  /// Pool memory of one node.
  [[nodiscard]] Result<std::unique_ptr<Arena>> allocate_on(NodeIndex node, std::uint64_t bytes,
                                                           DeviceStreams* streams = nullptr);
  /// Memory of another session that this one may read. If the node's daemon is restarted while the
  /// job has it, it is stale: transfers on it fail (kNotFound), and nothing else does.
  [[nodiscard]] Result<std::unique_ptr<Arena>> attach_shared(NodeIndex node,
                                                             std::vector<GrantedSegment> segments);
  [[nodiscard]] bool is_stale(const Arena& arena) {
    return engine_->call([&] { return arena.stale; });
  }
  /// Waits until no plain transfer uses the arena, then gives its segments back.
  void release(std::unique_ptr<Arena> arena);
  /// Whether a part of it lies on a node that is drained.
  [[nodiscard]] bool on_drained(const Arena& arena) const;
  /// Moves one of the arena's segments that lies on a drained node to others, by way of this
  /// process, and gives it back. Nothing begins to use the arena meanwhile.
  /// @param streams  what it was allocated with.
  /// @param moved  called by the transfer thread at the moment when the arena lies elsewhere.
  /// @return false: there is none; kExhausted: the other nodes have no room; the pool's failure.
  /// With an error the arena is as it was.
  [[nodiscard]] Result<bool> leave_drained(Arena& arena, DeviceStreams* streams,
                                           const std::function<void()>& moved);
  /// Nodes that memory and flash of drained ones can move to.
  [[nodiscard]] std::vector<NodeIndex> nodes_that_stay() const;
  /// A copy of one segment of an arena that is to take its place.
  struct SegmentCopy {
    Arena* arena = nullptr;
    NodeIndex node;
    SegmentId segment;
    std::unique_ptr<Arena> fresh;
  };
  /// Copies the arena's segments on one node to memory of another, as leave_drained() does.
  /// @return all or none; kExhausted: `to` has no room; the pool's failure.
  [[nodiscard]] Result<std::vector<SegmentCopy>> copy_segments(Arena& arena, NodeIndex from,
                                                               NodeIndex to,
                                                               DeviceStreams* streams);
  /// Puts copies in the place of their segments, which go back to their nodes. Nothing uses the
  /// arenas meanwhile. @param moved  as leave_drained() has it, once for all.
  void replace(std::vector<SegmentCopy> copies, const std::function<void()>& moved);
  void discard(std::vector<SegmentCopy> copies);

  /// What a call takes at least: in all, and of it on one node.
  struct Need {
    std::uint64_t ddr_bytes = 0;
    std::uint64_t ddr_whole_bytes = 0;
    std::uint64_t flash_bytes = 0;
    std::uint64_t flash_whole_bytes = 0;
  };
  /// Whether these nodes have so much, free or not. Also true if a node did not answer, or is out
  /// of reach.
  [[nodiscard]] bool may_fit(const Need& need, const std::vector<NodeIndex>& nodes);
  /// Nodes that have flash, and how much of it is free.
  [[nodiscard]] std::vector<FlashRoom> flash_rooms(const std::vector<NodeIndex>& nodes) {
    return sessions_->rooms_of(nodes).flash;
  }
  /// As Sessions::out_of_reach().
  [[nodiscard]] std::string out_of_reach() const { return sessions_->out_of_reach(); }
  /// As Sessions::no_flash().
  [[nodiscard]] Error no_flash() const { return sessions_->no_flash(); }
  [[nodiscard]] Result<FlashArena> allocate_flash(NodeIndex node, std::uint64_t bytes,
                                                  FlashPolicy policy);
  /// A durable extent by its number, its secret and its node's id.
  [[nodiscard]] Result<FlashArena> open_flash(NodeId node, const FlashExtent& extent);
  /// Does not wait. The caller finishes its stages first.
  [[nodiscard]] Result<void> free_flash(const FlashArena& flash);
  /// A plain transfer between flash and an arena; both ranges are checked.
  /// @return the ticket; kOutOfRange; kInvalidArgument: the arena's bytes lie on other nodes.
  [[nodiscard]] Result<std::uint64_t> start_stage(Direction direction, const FlashArena& flash,
                                                  std::uint64_t flash_offset_bytes,
                                                  const ArenaMap& arena,
                                                  std::uint64_t arena_offset_bytes,
                                                  std::uint64_t bytes,
                                                  std::uint64_t urgency = Urgency::kPlain);

  /// Makes host memory usable by every driver. The memory must exist until unregister_memory().
  [[nodiscard]] Result<LocalHandles> register_memory(std::span<std::byte> memory);
  /// Waits until no plain transfer uses it any more; a replay's must have ended.
  void unregister_memory(const LocalHandles& handles);

  /// Moves bytes between an arena and any host memory, and waits.
  [[nodiscard]] Result<void> move_now(Direction direction, const ArenaMap& arena,
                                      std::uint64_t offset_bytes, std::span<std::byte> memory);
  /// The same for memory inside what register_memory() gave `handles` for.
  /// @param late_after, traffic  as Transfer has them.
  [[nodiscard]] Result<void> move_registered(
      Direction direction, const ArenaMap& arena, std::uint64_t offset_bytes,
      std::span<std::byte> memory, const LocalHandles& handles, Duration late_after = {},
      transport::TrafficClass traffic = transport::TrafficClass::kDeadline);
  /// The same for an accelerator's memory, after all that is queued there.
  [[nodiscard]] Result<void> move_device(Direction direction, const ArenaMap& arena,
                                         std::uint64_t offset_bytes, std::span<std::byte> memory,
                                         DeviceStreams& streams);
  /// Copies bytes from one arena to another, by way of this process and as background traffic, and
  /// waits.
  [[nodiscard]] Result<void> copy(const ArenaMap& from, std::uint64_t from_bytes,
                                  const ArenaMap& to, std::uint64_t to_bytes, std::uint64_t bytes);

  /// Lets transfers name an accelerator, until remove_device(). Pins host memory where bytes have
  /// to go by way of it. @return the accelerator's or a driver's failure.
  [[nodiscard]] Result<void> add_device(DeviceStreams& streams);
  /// None of its transfers is under way.
  void remove_device(DeviceStreams& streams);

 private:
  explicit Pool(PoolOptions options) : options_(std::move(options)) {}
  [[nodiscard]] Result<void> start();
  [[nodiscard]] DriverIndex driver_of(const NodeSession& node) const;
  enum class Found : std::uint8_t { kNothing, kStillLost };
  /// @return how long to wait before the next look; negative: until a node is lost.
  [[nodiscard]] Duration look_for_lost();
  [[nodiscard]] Found try_resume(NodeIndex node);
  Found lose(NodeIndex node, FaultReason reason, const Error& why);
  [[nodiscard]] Result<void> reconnect(NodeIndex node, const Sessions::Resumed& resumed,
                                       TimePoint deadline);
  [[nodiscard]] Result<std::unique_ptr<Arena>> allocate_elsewhere(std::uint64_t bytes,
                                                                  NodeIndex like,
                                                                  DeviceStreams* streams);
  [[nodiscard]] Result<SegmentCopy> copy_segment(Arena& arena, const HeldSegment& segment,
                                                 Result<std::unique_ptr<Arena>> fresh);
  [[nodiscard]] HeldSegment take_place(SegmentCopy& copy);
  [[nodiscard]] Result<std::unique_ptr<Arena>> take(const ArenaSpec& spec,
                                                    const std::vector<NodeIndex>& from,
                                                    DeviceStreams* streams);
  [[nodiscard]] bool keys_ended(const Arena& arena);
  [[nodiscard]] Result<std::unique_ptr<Arena>> attach(Result<HeldArena> granted,
                                                      DeviceStreams* streams);
  [[nodiscard]] Result<void> attach(Arena& arena, const std::vector<HeldStretch>& stretches,
                                    const std::vector<std::byte*>& mapped);
  [[nodiscard]] Result<std::vector<std::byte*>> pin(Arena& arena, DeviceStreams& streams) const;

  PoolOptions options_;
  SteadyClock clock_;
  std::shared_ptr<Doorbell> door_ = std::make_shared<Doorbell>();
  const std::shared_ptr<Progress> progress_ = std::make_shared<Progress>();
  std::shared_ptr<Bell> losses_ = std::make_shared<Bell>();
  std::optional<PathFinder> paths_;
  std::mutex new_nodes_mutex_;  ///< runtimes of any thread look for nodes, one at a time
  std::unique_ptr<Sessions> sessions_;
  std::vector<std::string> driver_names_;
  std::string transport_name_;
  std::unique_ptr<Engine> engine_;  ///< ends before the sessions do
  std::map<DeviceStreams*, BounceMemory> devices_;
  std::set<Arena*> arenas_;  ///< that are attached; the transfer thread's
  /// HelloReply::daemon_instance of the daemon whose keys are in use, by NodeIndex; the transfer
  /// thread's.
  std::vector<std::uint64_t> instances_;
  /// Since when a node's daemon is gone, by NodeIndex; the resumer's thread.
  std::vector<std::optional<TimePoint>> gone_since_;
  struct Listener {
    NodeIndex node;
    std::function<void()> resumed;
  };
  std::mutex listeners_mutex_;  ///< held during calls, so that listeners can end
  std::map<std::uint64_t, Listener> listeners_;
  std::uint64_t last_listener_ = 0;
  /// Looks after lost control connections: beside the thread that renews leases, which must not
  /// wait for a daemon that starts. Ends before all that it resumes.
  std::optional<BellThread> resumer_;
  std::optional<Leavers> leavers_;  ///< ends first
};

}  // namespace ho::client
