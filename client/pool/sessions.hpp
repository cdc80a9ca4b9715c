#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "client/pool/paths/path_finder.hpp"
#include "client/pool/placement/flash_homes.hpp"
#include "client/pool/placement/spread.hpp"
#include "client/pool/progress.hpp"
#include "client/pool/renewer.hpp"
#include "client/transfer/bell.hpp"
#include "client/transfer/node_fault.hpp"
#include "common/base/clock.hpp"
#include "common/base/grow_only.hpp"
#include "common/base/result.hpp"
#include "common/base/shared_slot.hpp"
#include "common/system/numa.hpp"
#include "proto/control/control_client.hpp"

namespace ho::client {

struct SessionOptions {
  std::vector<std::string> addresses;  ///< tried in order; the rest of the pool is learnt
  std::string name;                    ///< the job, for people
  std::string tls_folder = {};         ///< as ControlClient::Options has it
  std::shared_ptr<const Progress> progress = {};  ///< goes with each renewal; null: none
};

/// One node of the pool with this job's session on it.
struct NodeSession {
  /// Changes when the daemon is restarted; a connection works, or fails, while one holds it.
  std::shared_ptr<SharedSlot<ControlClient>> link;
  Session session;
  std::string label;       ///< "node 2 (b, unix:/run/x.sock)"
  std::string machine;     ///< on which it runs: its boot id when the session was opened
  std::string rack;        ///< where its configuration says that it is; may be empty
  std::string driver;      ///< "local", "ucx", "ofi" or "tcp"
  transport::PeerId peer;  ///< of that driver
  std::shared_ptr<NodeFault> fault;

  [[nodiscard]] std::shared_ptr<ControlClient> control() const { return link->get(); }
};

/// What daemons have told of their future with the renewals of leases. Lost nodes do not count.
struct Notice {
  std::uint32_t drained = 0;  ///< nodes that an administrator empties
  std::uint32_t ending = 0;   ///< nodes whose daemons end, with what the job has there
  std::uint64_t left_ms = 0;  ///< until the first of them ends
  std::uint64_t changes = 0;  ///< how often any of this has changed
};

/// Whether nodes that were tried before, in vain or to be lost again, are tried at once, or after a
/// rest.
enum class TriedNodes : std::uint8_t { kAgain, kRest };

/// A segment held by this job.
struct HeldSegment {
  NodeIndex node;
  GrantedSegment segment;
  std::uint64_t instance = 0;  ///< HelloReply::daemon_instance of the one that granted it
};

/// A stretch of an arena within one of its segments.
struct HeldStretch {
  std::size_t segment = 0;  ///< index into HeldArena::segments
  std::uint64_t offset_bytes = 0;
  std::uint64_t length_bytes = 0;
};

/// The segments of one arena.
struct HeldArena {
  std::vector<HeldSegment> segments;
  std::vector<HeldStretch> stretches;  ///< in arena order
};

/// What nodes can give.
struct Rooms {
  std::vector<NodeRoom> ddr;
  std::vector<FlashRoom> flash;  ///< only of nodes that have some
};

/// A request for an arena.
struct ArenaSpec {
  std::uint64_t bytes = 0;
  std::span<const StagingPart> parts = {};  ///< parts that the nodes they name must give
  std::optional<NumaNode> numa = {};        ///< preferred, on a node that is reached by `local`
};

/// For the answer to any control request.
inline constexpr Duration kControlTimeout = std::chrono::seconds(2);
/// How often a request is made again whose daemon is restarted meanwhile.
inline constexpr int kRestartRetries = 2;

/// This job's sessions on all nodes of a pool, kept alive by a thread of its own.
///
/// Threads: any, except that one at a time looks for new nodes. Lifecycle: connect() -> grants ->
/// destructor, which closes every session (and with it frees all memory), bounded by a second for
/// each 64 nodes. A node that does not answer at connect() within 2 s, over all its addresses, or
/// that no driver reaches, each tried for 2 s at most, is left out, with a warning; if none is
/// left, it fails.
class Sessions {
 public:
  /// `losses` rings when a control connection is lost whose daemon may be taken over from.
  [[nodiscard]] static Result<std::unique_ptr<Sessions>> connect(const SessionOptions& options,
                                                                 PathFinder& paths,
                                                                 std::shared_ptr<Doorbell> door,
                                                                 std::shared_ptr<Bell> losses);
  ~Sessions();
  Sessions(const Sessions&) = delete;
  Sessions& operator=(const Sessions&) = delete;

  /// A NodeIndex is an index into it. Those that it has stay as they are; more may come.
  [[nodiscard]] const GrowOnly<NodeSession>& nodes() const { return nodes_; }
  /// The node where the job begins in the ring of all nodes: jobs use different parts of a pool.
  [[nodiscard]] NodeId ring_begin() const { return ring_begin_; }

  /// Opens sessions on nodes that the pool has now and this job has not: they came later, or were
  /// lost and are back. Takes 2 s or little more. Any thread, one at a time.
  /// @param use  gets each as soon as it is reached, for add().
  void find_new(PathFinder& paths, TriedNodes tried, const std::function<void(NodeSession)>& use);
  /// The next NodeIndex. The same thread.
  void add(NodeSession node);

  /// Gets segments for an arena, all or nothing. Bytes that no part names come from `candidates`,
  /// those that nodes_of_arena() names. @return kExhausted: "needs X, pool has Y on nodes ...";
  /// kUnavailable: all candidates are lost, or a part's node is; any other error of a daemon.
  [[nodiscard]] Result<HeldArena> grant(const ArenaSpec& spec,
                                        const std::vector<NodeIndex>& candidates);
  /// Gives the segments back. Skips lost nodes, where the lease ends them.
  void release(const std::vector<HeldSegment>& segments);

  /// The error for a job that has lost all its nodes. Any thread.
  [[nodiscard]] Error lost() const;
  /// Asks the nodes, one request each, many at a time.
  [[nodiscard]] Rooms rooms_of(const std::vector<NodeIndex>& candidates);
  /// Nodes that connect() left out, or that are lost or silent since, with the reasons. "": none.
  [[nodiscard]] std::string out_of_reach() const;
  /// Why rooms_of() has no flash. @return kUnsupported: the pool has none; kUnavailable: a node
  /// that connect() left out, or that is lost or silent since, may have some, with the reason.
  [[nodiscard]] Error no_flash() const;
  [[nodiscard]] Result<FlashExtent> allocate_flash(NodeIndex node, std::uint64_t bytes,
                                                   FlashPolicy policy);
  /// A durable extent that an earlier session made.
  [[nodiscard]] Result<FlashExtent> open_flash(NodeIndex node, const FlashExtent& extent);
  /// @return kUnavailable: the node is lost; kDeadline: it did not answer, this time or the last;
  /// kNotFound: it is freed.
  [[nodiscard]] Result<void> free_flash(NodeIndex node, std::uint64_t extent);

  /// A session at the daemon that follows the one it was opened at.
  struct Resumed {
    ResumedSession session;
    std::shared_ptr<ControlClient> control;
  };
  /// Connects to the daemon that follows one whose connection is lost, and finds the session again
  /// there, with its extents on flash.
  /// @return kUnavailable, kDeadline: there is none yet. Anything else is for good: kNotFound: it
  /// did not take the session over; kConflict: it is the same daemon.
  [[nodiscard]] Result<Resumed> resume(NodeIndex node, TimePoint deadline);
  /// Requests go to that daemon from now on. Those that wait for one begin.
  void settle(NodeIndex node, std::shared_ptr<ControlClient> control);
  /// The node's control connection. Where its daemon is restarted, waits for the next one's, as
  /// long as a client looks for it.
  [[nodiscard]] std::shared_ptr<ControlClient> await_control(const NodeSession& node) const;
  /// Asks a node's daemon, and the next one if it ends before it answers, a few times at most. So
  /// the request may be done twice. @param request  takes a ControlClient&
  template <typename Request>
  [[nodiscard]] auto ask(const NodeSession& node, const Request& request) const {
    auto control = await_control(node);
    auto answer = request(*control);
    for (int i = 0; i < kRestartRetries && !answer; ++i) {
      if (answer.error().code() != Errc::kUnavailable) break;
      control = control_after(node, control);
      if (control == nullptr) break;
      answer = request(*control);
    }
    return answer;
  }
  /// Any thread.
  [[nodiscard]] Notice notice() const;
  /// Rings when notice() has changed.
  [[nodiscard]] std::shared_ptr<Bell> notices() const { return notices_; }
  /// Whether the node is there, and its daemon has told that it is drained, or that it ends. Any
  /// thread.
  [[nodiscard]] bool is_drained(NodeIndex node) const;
  /// Ends a rail of the node's session by that connection.
  [[nodiscard]] transport::FenceRequest fence_of(NodeIndex node, ControlClient& control) const;

 private:
  /// The connection to the next daemon after a request ended as unavailable. nullptr: that was the
  /// daemon's answer, or there is no next one.
  [[nodiscard]] std::shared_ptr<ControlClient> control_after(
      const NodeSession& node, const std::shared_ptr<ControlClient>& failed) const;
  Sessions(SessionOptions options, std::shared_ptr<Doorbell> door, std::shared_ptr<Bell> losses)
      : options_(std::move(options)), door_(std::move(door)), losses_(std::move(losses)) {}
  [[nodiscard]] ControlClient::Options control_options(
      const std::string& address, const std::shared_ptr<NodeFault>& fault) const;
  [[nodiscard]] Error without_session(const NodeSession& node, const Error& error);
  [[nodiscard]] Result<void> reopen_flash(NodeIndex node, ControlClient& control,
                                          TimePoint deadline);
  [[nodiscard]] Result<NodeSession> dial(const std::string& address, TimePoint deadline) const;
  void come_nearer(NodeSession& first, const NodeInfo& info, const PathFinder& paths) const;
  [[nodiscard]] Result<NodeSession> dial_node(const NodeInfo& info, Duration timeout) const;
  [[nodiscard]] std::vector<Result<NodeSession>> dial_nodes(
      const std::vector<const NodeInfo*>& nodes) const;
  [[nodiscard]] Result<void> reach(PathFinder& paths, NodeSession& node, Duration timeout) const;
  [[nodiscard]] Result<void> reach_all(NodeSession first, PathFinder& paths);
  [[nodiscard]] bool has(NodeId node) const;
  void list_nodes();
  [[nodiscard]] Result<NodeSession> try_node(const NodeInfo& info, PathFinder& paths);
  void renew_leases();
  [[nodiscard]] std::vector<NodeIndex> ring_of(const std::vector<NodeIndex>& candidates,
                                               std::span<const StagingPart> parts,
                                               const std::set<NodeIndex>& full) const;
  struct Wanted;
  [[nodiscard]] std::vector<Wanted> wanted(const std::vector<Stripe>& stripes,
                                           const std::vector<NodeRoom>& rooms,
                                           std::optional<NumaNode> numa) const;
  [[nodiscard]] Result<HeldArena> take(const std::vector<Stripe>& stripes,
                                       const std::vector<NodeRoom>& rooms, const ArenaSpec& arena,
                                       std::set<NodeIndex>& full);
  void note_renewed(std::size_t node, const RenewedLease& renewed);
  [[nodiscard]] Duration shortest_lease() const;
  [[nodiscard]] std::vector<Result<NodeStatus>> status_of(const std::vector<NodeIndex>& candidates);
  void renew_all();

  /// An extent on flash that the session of a node has open.
  struct OpenExtent {
    NodeIndex node;
    FlashExtent extent;
    FlashPolicy policy = FlashPolicy::kDurable;
  };

  SteadyClock clock_;
  NodeId ring_begin_;  ///< set by connect()
  const SessionOptions options_;
  std::shared_ptr<Doorbell> door_;
  std::shared_ptr<const Progress> progress_;
  std::shared_ptr<Bell> losses_;
  std::mutex extents_mutex_;  ///< any thread makes and frees them; rare
  std::vector<OpenExtent> extents_;
  GrowOnly<NodeSession> nodes_{kNodesMax};
  /// A node that find_new() has tried.
  struct Tried {
    TimePoint again;     ///< it rests until then
    Duration pause{};    ///< how long it rests
    std::string reason;  ///< why it was of no use the last time; empty: it was
  };
  std::map<NodeId, Tried> tried_;  ///< find_new()'s own
  std::vector<NodeInfo> listed_;   ///< the last list of a node; connect()'s, then find_new()'s
  /// Nodes, "NODE: REASON" each; constant after connect().
  std::vector<std::pair<NodeId, std::string>> left_out_;
  /// What a node has told with the last renewal.
  struct Told {
    bool drained = false;
    std::optional<TimePoint> end;
  };
  mutable std::mutex told_mutex_;  ///< any thread asks, once a step
  std::vector<Told> told_;         ///< by node
  std::uint64_t told_changes_ = 0;
  const std::shared_ptr<Bell> notices_ = std::make_shared<Bell>();
  std::atomic<bool> stopping_{false};
  std::optional<Renewer> renewer_;
};

}  // namespace ho::client
