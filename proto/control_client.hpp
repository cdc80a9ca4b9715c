#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "proto/control_values.hpp"

namespace ho {

/// The client's end of one control connection to one daemon.
///
/// Threads: every method may be called from any thread and blocks until the answer, the deadline or
/// the loss of the connection. One I/O thread of its own (all signals blocked) reads and writes.
/// Lifecycle: connect() -> calls -> destructor (bounded: never waits for the daemon). A connection
/// that was lost stays lost: every later call answers kUnavailable at once; make a new client.
/// Outcomes of every call: the daemon's error as it sent it; kUnavailable (connection lost);
/// kDeadline (no answer in time; what was asked may still happen); kBusy (over 1024 calls wait);
/// kCorrupt (the answer makes no sense).
class ControlClient {
 public:
  struct Options {
    std::string address;      ///< "unix:PATH" or "tcp:HOST:PORT" ("tcp:[::1]:7700" for IPv6)
    std::string client_name;  ///< for people
    /// Called once on the I/O thread when the connection is lost, not when the client is destroyed.
    /// Set an atomic or post; must not call or destroy this client.
    std::function<void(const Error&)> on_closed;
  };

  /// Connects and says hello. @return kInvalidArgument (not an address), kUnavailable (nobody
  /// listens there), kDeadline, kUnsupported (protocol version).
  [[nodiscard]] static Result<std::unique_ptr<ControlClient>> connect(Options options,
                                                                      TimePoint deadline);
  ~ControlClient();
  ControlClient(const ControlClient&) = delete;
  ControlClient& operator=(const ControlClient&) = delete;

  /// The daemon's hello. Constant for this connection.
  [[nodiscard]] const HelloReply& hello() const;
  [[nodiscard]] const std::string& address() const;
  /// The connection is lost. Any thread.
  [[nodiscard]] bool closed() const;

  /// `driver`: the one that grants will be asked for, whose address may be the session's own then.
  [[nodiscard]] Result<Session> open_session(const std::string& name, TimePoint deadline,
                                             const std::string& driver = {});
  /// @return the lease from now on. kNotFound: it has lapsed; its memory is gone.
  [[nodiscard]] Result<std::chrono::milliseconds> renew_lease(const Session& session,
                                                              TimePoint deadline);
  /// Ends the session and frees all it holds, at once.
  [[nodiscard]] Result<void> close_session(const Session& session, TimePoint deadline);

  /// All or nothing. kExhausted: "needs X, pool has Y on nodes ...". It may take several requests
  /// (segments_per_grant_max()); what an earlier one granted is released when a later one fails.
  /// After kDeadline the daemon may still have granted: only close_session() is sure to free it.
  [[nodiscard]] Result<std::vector<GrantedSegment>> grant(const Session& session,
                                                          const GrantSpec& spec,
                                                          TimePoint deadline);
  /// Gives segments back. The answer means: no access through their keys begins any more.
  [[nodiscard]] Result<void> release(const Session& session, const std::vector<SegmentId>& segments,
                                     TimePoint deadline);

  /// @return kUnsupported: the node has no flash, and why; kExhausted: no space or budget. What is
  /// made after kDeadline is freed when its answer comes, if the connection lives so long.
  [[nodiscard]] Result<FlashExtent> flash_allocate(const Session& session, std::uint64_t bytes,
                                                   FlashPolicy policy, TimePoint deadline);
  /// Takes a durable extent of an earlier session into this one; only id and access count, the
  /// length is filled in. @return kNotFound: none such, or another access.
  [[nodiscard]] Result<FlashExtent> flash_open(const Session& session, const FlashExtent& extent,
                                               TimePoint deadline);
  [[nodiscard]] Result<void> flash_free(const Session& session, std::uint64_t extent,
                                        TimePoint deadline);
  /// Starts one stage request and returns. `done` hears its end once, on the I/O thread or, when
  /// this client is destroyed before, on the destroying one; it must not call this client. No
  /// deadline: only the answer says that the segment's bytes are the session's again.
  /// @return kUnavailable, kBusy: nothing was started and `done` is not called.
  [[nodiscard]] Result<void> stage(const Session& session, const StageSpec& spec,
                                   std::function<void(const Result<void>&)> done);

  [[nodiscard]] Result<std::vector<NodeInfo>> nodes(TimePoint deadline);  ///< this daemon first
  [[nodiscard]] Result<NodeStatus> status(TimePoint deadline);
  [[nodiscard]] Result<std::vector<SessionInfo>> sessions(TimePoint deadline);
  [[nodiscard]] Result<std::vector<SegmentInfo>> segments(TimePoint deadline);
  /// @return kUnsupported: the node has no flash, and why.
  [[nodiscard]] Result<std::vector<FlashExtentInfo>> flash_extents(TimePoint deadline);
  /// Ends a durable extent that no session has open. @return kPermissionDenied: only root and the
  /// daemon's own user may, over the Unix socket; kConflict: in use; kNotFound.
  [[nodiscard]] Result<void> flash_erase(std::uint64_t extent, TimePoint deadline);

 private:
  class Connection;
  static void free_late(Connection& connection, const Session& session, std::uint64_t extent);
  explicit ControlClient(std::unique_ptr<Connection> connection);
  std::unique_ptr<Connection> connection_;
};

}  // namespace ho
