#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/pool/flash_homes.hpp"
#include "client/pool/path_finder.hpp"
#include "client/pool/renewer.hpp"
#include "client/pool/spread.hpp"
#include "client/transfer/node_fault.hpp"
#include "common/base/clock.hpp"
#include "common/base/numa.hpp"
#include "common/base/result.hpp"
#include "proto/control_client.hpp"

namespace ho::client {

struct SessionOptions {
  std::vector<std::string> addresses;  ///< tried in order; the rest of the pool is learnt
  std::string name;                    ///< the job, for people
  std::string tls_folder = {};         ///< as ControlClient::Options has it
};

/// One node of the pool with this job's session on it.
struct NodeSession {
  std::unique_ptr<ControlClient> control;
  Session session;
  std::string label;       ///< "node 2 (b, unix:/run/x.sock)"
  std::string driver;      ///< "local", "ucx", "ofi" or "tcp"
  transport::PeerId peer;  ///< of that driver
  std::shared_ptr<NodeFault> fault;
};

/// A segment held by this job.
struct HeldSegment {
  NodeIndex node;
  GrantedSegment segment;
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

/// What is asked for an arena.
struct ArenaSpec {
  std::uint64_t bytes = 0;
  std::span<const StagingPart> parts = {};  ///< come from the nodes they name
  std::optional<NumaNode> numa = {};        ///< wished for where a node is reached by `local`
};

/// This job's sessions on all nodes of a pool, kept alive by a thread of its own.
///
/// Threads: grant() and release() from any thread. Lifecycle: connect() -> grants -> destructor,
/// which closes every session (and with it frees all memory), bounded by a second a node. A node
/// that does not answer at connect() within 2 s, over all its addresses, or that no driver reaches,
/// each tried for 2 s at most, is left out, with a warning; if none is left, it fails.
class Sessions {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Sessions>> connect(const SessionOptions& options,
                                                                 PathFinder& paths,
                                                                 std::shared_ptr<Doorbell> door);
  ~Sessions();
  Sessions(const Sessions&) = delete;
  Sessions& operator=(const Sessions&) = delete;

  /// Constant after connect(). A NodeIndex is an index into it.
  [[nodiscard]] const std::vector<NodeSession>& nodes() const { return nodes_; }

  /// Gets segments for an arena, all or nothing. @return
  /// kExhausted: "needs X, pool has Y on nodes ..."; kUnavailable: a part's node is no candidate
  /// (any more); what a daemon answers otherwise. What the spec's parts leave comes from
  /// `candidates`.
  [[nodiscard]] Result<HeldArena> grant(const ArenaSpec& spec,
                                        const std::vector<NodeIndex>& candidates);
  /// Gives them back; nodes that are lost are passed over: their lease ends it.
  void release(const std::vector<HeldSegment>& segments);

  [[nodiscard]] std::vector<FlashRoom> flash_of(const std::vector<NodeIndex>& candidates);
  [[nodiscard]] Result<FlashExtent> allocate_flash(NodeIndex node, std::uint64_t bytes,
                                                   FlashPolicy policy);
  /// A durable extent that an earlier session made.
  [[nodiscard]] Result<FlashExtent> open_flash(NodeIndex node, const FlashExtent& extent);
  /// @return kUnavailable: the node is lost; kDeadline: it did not answer, this time or the last;
  /// kNotFound: it is freed.
  [[nodiscard]] Result<void> free_flash(NodeIndex node, std::uint64_t extent);

 private:
  explicit Sessions(std::shared_ptr<Doorbell> door) : door_(std::move(door)) {}
  [[nodiscard]] Result<NodeSession> dial(const std::string& address, const SessionOptions& options,
                                         TimePoint deadline);
  void come_nearer(const NodeInfo& info, const SessionOptions& options, const PathFinder& paths);
  [[nodiscard]] Result<NodeSession> dial_node(const NodeInfo& info, const SessionOptions& options);
  [[nodiscard]] Result<void> reach_all(const SessionOptions& options, PathFinder& paths);
  [[nodiscard]] Result<HeldArena> take(const std::vector<Stripe>& stripes,
                                       const std::vector<NodeRoom>& rooms, const ArenaSpec& arena);
  [[nodiscard]] Duration shortest_lease() const;
  [[nodiscard]] std::vector<Result<NodeStatus>> status_of(const std::vector<NodeIndex>& candidates);
  [[nodiscard]] std::vector<NodeRoom> room_of(const std::vector<NodeIndex>& candidates);
  void renew_all();

  SteadyClock clock_;
  std::shared_ptr<Doorbell> door_;
  std::vector<NodeSession> nodes_;
  std::atomic<bool> stopping_{false};
  std::optional<Renewer> renewer_;
};

}  // namespace ho::client
