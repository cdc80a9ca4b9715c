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
#include "proto/control/block_values.hpp"
#include "proto/control/control_values.hpp"
#include "proto/control/event_values.hpp"
#include "proto/control/object_values.hpp"

namespace ho::tls {
class Context;
}

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
    std::string address;  ///< "unix:PATH" or "tcp:HOST:PORT" ("tcp:[::1]:7700" for IPv6)
    /// Over TCP: the folder of node.crt, node.key and ca.crt, for TLS; empty: without TLS, which
    /// only a daemon with `insecure` takes.
    std::string tls_folder = {};
    std::shared_ptr<const tls::Context> tls = {};  ///< read already, in place of tls_folder
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
  /// @param progress  what the daemon shows of the job; it may have nothing to tell.
  /// @return the duration of the lease from now on. kNotFound: the lease has ended and its memory
  /// is freed.
  [[nodiscard]] Result<RenewedLease> renew_lease(const Session& session, TimePoint deadline,
                                                 const JobProgress& progress = {});
  /// Ends the session at once and frees all that it holds.
  [[nodiscard]] Result<void> close_session(const Session& session, TimePoint deadline);

  /// Finds a session again that this daemon took over from an earlier one.
  /// @return kNotFound: it did not, or the session has ended.
  [[nodiscard]] Result<ResumedSession> resume(const Session& session, TimePoint deadline);

  /// Ends the daemon and leaves what it holds to the next one. The answer comes before the end.
  /// @return kPermissionDenied: only administrators may do this; kConflict: sessions would lose
  /// something, and what, unless it is forced; why it cannot: kUnsupported, kExhausted,
  /// kInvalidArgument (its configuration is wrong), ...
  enum class Upgrade : std::uint8_t { kWhole, kForced };
  [[nodiscard]] Result<LeftOver> upgrade(Upgrade how, TimePoint deadline);
  /// For administrators: the node takes nothing new.
  [[nodiscard]] Result<DrainLeft> drain(TimePoint deadline);
  /// For administrators: takes drain() back.
  [[nodiscard]] Result<void> undrain(TimePoint deadline);

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

  /// Asks the daemon to end its side of a rail. Its text is the rail's address from now on; empty:
  /// unchanged. As all calls that give a future it does not wait: that is ready at the latest when
  /// the connection is lost, and at once, with kUnavailable or kBusy, where nothing was sent.
  [[nodiscard]] std::future<Result<std::string>> fence(const Session& session,
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

  /// The node's KV block store. The session must exist; `store` is what blocks_open() gave.
  /// @return the store's number; kUnsupported: the node has no store.
  [[nodiscard]] Result<std::uint32_t> blocks_open(const Session& session,
                                                  const BlocksTenantSpec& spec, TimePoint deadline);
  // These start a request and return, as stage() does: `done` is called once, on the I/O thread, or
  // on the thread that destroys this client first. It may start such requests. There is no
  // deadline. @return kUnavailable, kBusy: nothing started, and `done` is not called.
  template <typename Value>
  using Answered = std::function<void(Result<Value>)>;
  /// Segments of the store that the session may access from now on, those that exist.
  [[nodiscard]] Result<void> blocks_attach(const Session& session, std::uint32_t store,
                                           const std::string& driver,
                                           const std::vector<SegmentId>& segments,
                                           Answered<std::vector<GrantedSegment>> done);
  /// One place a key; id 0: not stored.
  [[nodiscard]] Result<void> blocks_locate(const Session& session, std::uint32_t store,
                                           std::span<const BlockDigest> keys,
                                           Answered<std::vector<BlockLocation>> done);
  /// One a key: whether it was stored.
  [[nodiscard]] Result<void> blocks_ask(const Session& session, std::uint32_t store,
                                        BlocksQuestion question, std::span<const BlockDigest> keys,
                                        Answered<std::vector<bool>> done);
  /// Pins the longest run of stored blocks at the beginning of `keys`.
  [[nodiscard]] Result<void> blocks_pin(const Session& session, std::uint32_t store,
                                        std::span<const BlockDigest> keys,
                                        std::chrono::milliseconds time,
                                        Answered<BlocksPinned> done);
  /// One slot a wish.
  [[nodiscard]] Result<void> blocks_reserve(const Session& session, std::uint32_t store,
                                            std::span<const BlockWish> wishes,
                                            Answered<std::vector<BlockSlot>> done);
  /// One a commit: whether it is stored.
  [[nodiscard]] Result<void> blocks_settle(const Session& session, std::uint32_t store,
                                           const BlocksSettlement& settlement,
                                           Answered<std::vector<bool>> done);
  [[nodiscard]] Result<BlocksReport> blocks_list(TimePoint deadline);
  /// Ends all blocks of a tenant, by its name in the report. @return kNotFound; kPermissionDenied:
  /// only administrators may do this.
  [[nodiscard]] Result<BlocksCleared> blocks_clear(const std::string& tenant, TimePoint deadline);

  // Published objects of this node. `secret`: empty, or 16 to 256 bytes; the same name is another
  // object with another secret.
  /// Makes a part visible. @return kAlreadyExists: this node has the version's part, or the version
  /// from another run. kNotFound: a segment is not the session's.
  [[nodiscard]] Result<void> object_publish(const Session& session, const std::string& secret,
                                            const ObjectPart& part, TimePoint deadline);
  /// Reserves the version of `id` for its run in the whole pool, until this session's part of it is
  /// dropped. @return kAlreadyExists: another run has it; kUnsupported: the pool has no etcd;
  /// kUnavailable: etcd does not answer.
  [[nodiscard]] Result<void> object_claim(const Session& session, const std::string& secret,
                                          const ObjectPartId& id, TimePoint deadline);
  /// Ends a part of this session. @return kBusy: a reader has it open; kNotFound.
  [[nodiscard]] Result<void> object_drop(const Session& session, const std::string& secret,
                                         const ObjectPartId& id, TimePoint deadline);
  /// The parts of an object that this node holds of versions between two, both included, newest
  /// first. An answer has room for 1024.
  [[nodiscard]] std::future<Result<std::vector<ObjectPart>>> objects_find(
      const Session& session, const std::string& secret, const std::string& name,
      std::uint64_t min_version, std::uint64_t max_version);
  /// What a reader wants of a part.
  struct ObjectAccess {
    std::string driver;
    std::vector<SegmentId> segments;  ///< to be accessed; at most segments_per_grant_max()
    std::uint64_t hold = 0;           ///< of an earlier answer; 0: a new one
  };
  /// Keeps a part from being dropped, and gives access to its segments. @return kNotFound.
  [[nodiscard]] std::future<Result<OpenObjectPart>> object_open(const Session& session,
                                                                const std::string& secret,
                                                                const ObjectPartId& id,
                                                                const ObjectAccess& access);
  [[nodiscard]] std::future<Result<void>> objects_close(const Session& session,
                                                        const std::vector<std::uint64_t>& holds);
  /// All parts that this node holds, for people.
  [[nodiscard]] Result<std::vector<ObjectInfo>> objects(TimePoint deadline);

  /// What happened on the node after the event of this number: all that it keeps of it.
  [[nodiscard]] Result<EventsPage> events(std::uint64_t after, TimePoint deadline);
  [[nodiscard]] Result<std::vector<NodeInfo>> nodes(TimePoint deadline);  ///< this daemon first
  [[nodiscard]] Result<NodeStatus> status(TimePoint deadline);
  enum class Names : std::uint8_t { kAllowed, kPublic };
  /// @param names  those of others that this client may see, or that everybody may see.
  [[nodiscard]] Result<std::vector<SessionInfo>> sessions(TimePoint deadline,
                                                          Names names = Names::kAllowed);
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

/// What a call that gives a future was answered. @return kDeadline: nothing yet.
template <typename T>
[[nodiscard]] Result<T> answer_by(std::future<Result<T>> answer, TimePoint deadline) {
  if (answer.wait_until(deadline) == std::future_status::ready) return answer.get();
  return Error(Errc::kDeadline, "no answer before the deadline");
}

}  // namespace ho
