#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "proto/control_values.hpp"

namespace ho {

/// The client side of one control connection to one daemon.
///
/// Threads: any thread may call any method. Each blocks until the answer, the deadline or the loss
/// of the connection. An I/O thread of its own, with all signals blocked, reads and writes.
/// Lifecycle: connect() -> calls -> destructor, which takes bounded time and never waits for the
/// daemon. A lost connection stays lost: every later call returns kUnavailable at once; make a new
/// client.
///
/// Outcomes of every call: the error that the daemon sent; kUnavailable (connection lost);
/// kDeadline (no answer in time; the daemon may still carry out the request); kBusy (1024 calls are
/// waiting); kCorrupt (invalid answer).
class ControlClient {
 public:
  struct Options {
    std::string address;      ///< "unix:PATH" or "tcp:HOST:PORT" ("tcp:[::1]:7700" for IPv6)
    std::string client_name;  ///< for people
    /// Over TCP: the folder of node.crt, node.key and ca.crt, for TLS; empty: without TLS, which
    /// only a daemon with `insecure` takes.
    std::string tls_folder = {};
    /// Called once on the I/O thread when the connection is lost, and not when the client is
    /// destroyed. It must not call or destroy this client; set an atomic or post a task.
    std::function<void(const Error&)> on_closed;
  };

  /// Connects and exchanges hello.
  /// @return kInvalidArgument (invalid address or certificate), kUnavailable (no daemon listens
  /// there), kDeadline, kUnsupported (protocol version; the daemon wants TLS), kPermissionDenied (a
  /// certificate is refused, at either end).
  [[nodiscard]] static Result<std::unique_ptr<ControlClient>> connect(Options options,
                                                                      TimePoint deadline);
  ~ControlClient();
  ControlClient(const ControlClient&) = delete;
  ControlClient& operator=(const ControlClient&) = delete;

  /// The daemon's hello; constant for this connection.
  [[nodiscard]] const HelloReply& hello() const;
  [[nodiscard]] const std::string& address() const;
  /// True once the connection is lost. Any thread.
  [[nodiscard]] bool closed() const;

  /// `driver`: the driver that carries the data of the session; empty: "local".
  [[nodiscard]] Result<Session> open_session(const std::string& name, TimePoint deadline,
                                             const std::string& driver = {});
  /// @return the duration of the lease from now on. kNotFound: the lease has ended and its memory
  /// is freed.
  [[nodiscard]] Result<std::chrono::milliseconds> renew_lease(const Session& session,
                                                              TimePoint deadline);
  /// Ends the session at once and frees all that it holds.
  [[nodiscard]] Result<void> close_session(const Session& session, TimePoint deadline);

  /// Ends a session of any job; its memory is free then. @return kPermissionDenied: only
  /// administrators may do this; kNotFound.
  [[nodiscard]] Result<void> evict(SessionId session, TimePoint deadline);

  /// Grants all or nothing. kExhausted: "needs X, pool has Y on nodes ...". May send several
  /// requests (segments_per_grant_max()); if one fails, releases what earlier ones granted.
  /// Memory that is granted after kDeadline is released when the answer arrives, if the connection
  /// still exists.
  [[nodiscard]] Result<std::vector<GrantedSegment>> grant(const Session& session,
                                                          const GrantSpec& spec,
                                                          TimePoint deadline);
  /// Returns segments. After success no access through their keys begins any more.
  [[nodiscard]] Result<void> release(const Session& session, const std::vector<SegmentId>& segments,
                                     TimePoint deadline);

  /// Asks the daemon to end its side of a rail; does not wait. The future is ready at the latest
  /// when the connection is lost. Its text is the rail's address from now on; empty: unchanged.
  /// @return kUnavailable, kBusy: nothing was sent.
  [[nodiscard]] Result<std::future<Result<std::string>>> fence(const Session& session,
                                                               const transport::RailFence& rail);

  /// Makes an extent. An extent made after kDeadline is freed when its answer arrives, if the
  /// connection still exists.
  /// @return kUnsupported: the node has no flash, with the reason; kExhausted: no space or no
  /// budget.
  [[nodiscard]] Result<FlashExtent> flash_allocate(const Session& session, std::uint64_t bytes,
                                                   FlashPolicy policy, TimePoint deadline);
  /// Opens a durable extent of an earlier session in this one. `extent` needs id and access; the
  /// result has the length.
  /// @return kNotFound: no such extent, or wrong access.
  [[nodiscard]] Result<FlashExtent> flash_open(const Session& session, const FlashExtent& extent,
                                               TimePoint deadline);
  [[nodiscard]] Result<void> flash_free(const Session& session, std::uint64_t extent,
                                        TimePoint deadline);
  /// Starts one stage request and returns. Calls `done` once with the outcome, on the I/O thread,
  /// or on the thread that destroys this client first. `done` must not call this client. There is
  /// no deadline: until the answer, the range of the segment belongs to the daemon.
  /// @return kUnavailable, kBusy: nothing started, and `done` is not called.
  [[nodiscard]] Result<void> stage(const Session& session, const StageSpec& spec,
                                   std::function<void(const Result<void>&)> done);

  [[nodiscard]] Result<std::vector<NodeInfo>> nodes(TimePoint deadline);  ///< this daemon first
  [[nodiscard]] Result<NodeStatus> status(TimePoint deadline);
  [[nodiscard]] Result<std::vector<SessionInfo>> sessions(TimePoint deadline);
  [[nodiscard]] Result<std::vector<SegmentInfo>> segments(TimePoint deadline);
  /// @return kUnsupported: the node has no flash, with the reason.
  [[nodiscard]] Result<std::vector<FlashExtentInfo>> flash_extents(TimePoint deadline);
  /// Ends a durable extent that no session has open. @return kPermissionDenied: only
  /// administrators may do this; kConflict: in use; kNotFound.
  [[nodiscard]] Result<void> flash_erase(std::uint64_t extent, TimePoint deadline);

 private:
  class Connection;
  static void release_late(Connection& connection, const Session& session,
                           std::span<const SegmentId> segments);
  static void free_late(Connection& connection, const Session& session, std::uint64_t extent);
  explicit ControlClient(std::unique_ptr<Connection> connection);
  std::unique_ptr<Connection> connection_;
};

}  // namespace ho
