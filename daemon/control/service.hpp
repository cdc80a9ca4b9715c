#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/tally.hpp"
#include "common/system/unique_fd.hpp"
#include "common/tls/certificate.hpp"
#include "common/transport/traffic.hpp"
#include "common/transport/transport.hpp"
#include "daemon/blocks/block_index.hpp"
#include "daemon/control/access.hpp"
#include "daemon/control/events.hpp"
#include "daemon/grant/grants.hpp"
#include "daemon/grant/staging.hpp"
#include "daemon/objects/object_claims.hpp"
#include "daemon/objects/object_directory.hpp"
#include "daemon/pool/pool.hpp"
#include "proto/control/control_values.hpp"

namespace hyperoffload::v1 {
class Request;
class Response;
class HelloRequest;
}  // namespace hyperoffload::v1

namespace ho::flash {
class FlashLoop;
}

namespace ho::daemon {

class BlockStore;

/// Describes the other end of a control connection.
struct PeerInfo {
  bool same_node = false;  ///< came over the Unix socket: descriptors can pass
  std::uint32_t pid = 0;   ///< as the kernel (Unix) or the peer's hello (TCP) says
  /// "uid 1000", "job trainer" (by its certificate), or the host: what stays when a job runs again.
  std::string owner;
  std::string description;  ///< "unix uid=0 pid=12", "tcp 127.0.0.1:4711 (job trainer)"
  /// By its certificate; else by its user: admin for root, this daemon's user and `admins`.
  tls::Role role = tls::Role::kJob;
  std::string certificate = {};  ///< the owner, by its certificate; empty: it shows none
  bool sees_others = true;       ///< their names and users
};

/// How the daemon's listeners are protected. For people: see deploy/SECURITY.md.
struct Protection {
  bool insecure = false;  ///< the configuration allows to go without
  std::vector<std::string>
      unprotected;               ///< "control", "tcp", "ucx", "ofi", "http": plain on a network
  std::string certificate_ends;  ///< "2027-01-31 12:00:00 UTC"; empty: no TLS
};

/// What this daemon says of itself; constant after start, except the other nodes and how they are
/// known.
struct NodeFacts {
  std::string boot_id;
  std::uint64_t instance = 0;
  std::vector<NodeInfo> nodes;              ///< this one first
  const flash::FlashLoop* flash = nullptr;  ///< outlives the service; nullptr: no flash
  std::string flash_off = {};               ///< why configured flash is not there
  std::vector<DriverOff> drivers_off = {};
  std::shared_ptr<Tally> refusals = {};  ///< what is refused is counted here; nullptr: nowhere
  Protection protection = {};
  /// What `tcp` serves; null: there is no such driver.
  std::shared_ptr<const transport::Traffic> tcp = {};
  std::uint64_t incarnation = 0;  ///< HelloReply::incarnation
  MembershipStatus membership = {};
};

/// What the control thread has done since the daemon's start.
struct Activity {
  std::uint64_t sessions_opened = 0;
  std::uint64_t sessions_closed = 0;  ///< by their jobs
  std::uint64_t sessions_lapsed = 0;
  std::uint64_t sessions_evicted = 0;
  std::uint64_t lease_renewals = 0;
  std::uint64_t grants = 0;
  std::uint64_t granted_bytes = 0;                ///< by all grants so far
  std::map<std::string, std::uint64_t> requests;  ///< by the body's name in control.proto
  /// Error answers, by request and the error's name.
  std::map<std::pair<std::string, std::string>, std::uint64_t> errors;
  std::uint64_t tls_failures = 0;  ///< control connections that ended before TLS was established
};

/// What a daemon took over from the last one.
struct TakenOver {
  std::uint32_t sessions = 0;
  std::uint32_t segments = 0;
  std::uint32_t lost_sessions = 0;  ///< that did not fit together
};

/// For so long clients look for a daemon that took over their sessions: a restart takes a fraction
/// of a second, or some seconds on a machine that is busy.
inline constexpr std::chrono::milliseconds kResumeTime{5000};

/// Shown in place of a name of others.
inline constexpr const char* kHiddenName = "hidden";

/// Answers requests. Validates first; knows nothing of sockets.
/// Owner: the control thread. Every request is answered exactly once, at once or later.
class Service {
 public:
  using Request = hyperoffload::v1::Request;
  using Response = hyperoffload::v1::Response;
  /// Takes the answer. @return false: the peer has gone, nobody hears it.
  using Reply = std::function<bool(const Response&, std::vector<UniqueFd>)>;

  Service(Pool& pool, Grants& grants, Staging& staging, DataLoop& data, Keeper& keeper,
          const Clock& clock, NodeFacts facts);

  /// Asked before the daemon ends itself for an upgrade. @return why it cannot now.
  using CheckUpgrade = std::function<Result<void>()>;
  /// Called once the request is answered.
  using BeginUpgrade = std::function<void()>;
  void set_upgrade(CheckUpgrade check, BeginUpgrade begin) {
    check_upgrade_ = std::move(check);
    begin_upgrade_ = std::move(begin);
  }
  /// Leaves the block store to the next daemon, and ends flash where it has extents. The last act
  /// before an end for an upgrade.
  void leave_blocks();
  /// Sets what status() reports of the takeover.
  void set_taken(const TakenOver& taken) { taken_ = taken; }

  // The peer must live until its request is answered, in all of these.

  /// The first request of a connection. @return false: refused (and answered); close the
  /// connection.
  [[nodiscard]] bool hello(const Request& request, const PeerInfo& peer, const Reply& answer);
  void handle(const Request& request, const PeerInfo& peer, const Reply& answer);
  /// An answer that says why a request was not taken up.
  void refuse(const Request& request, const PeerInfo& peer, const Error& error, const Reply& reply);
  /// Whether a request asks for no more than a look at the pool, as not only jobs do.
  [[nodiscard]] static bool only_looks(const Request& request);
  /// Counts what was refused without an answer.
  void count_refusal(const std::string& cause, const PeerInfo& peer, const std::string& why);

  /// Counts a connection that ended before TLS was established.
  void count_tls_failure() { activity_.tls_failures += 1; }

  // The same values as in answers.
  /// @param viewer  the peer that sees them; null: any user of the status page.
  [[nodiscard]] NodeStatus node_status(const PeerInfo* viewer = nullptr) const;
  [[nodiscard]] std::vector<SessionInfo> session_infos(const PeerInfo* viewer = nullptr) const;
  [[nodiscard]] const NodeFacts& facts() const { return facts_; }
  [[nodiscard]] const Activity& activity() const { return activity_; }
  /// As Staging::traffic().
  [[nodiscard]] const transport::Traffic& stages() const { return staging_.traffic(); }
  [[nodiscard]] Events& events() { return events_; }

  /// Sets the rights from now on. Connections keep the role that they began with.
  void set_access(Access access) { access_ = std::move(access); }
  [[nodiscard]] const Access& access() const { return access_; }

  /// Before the first request; outlives the service. Without it there is no block store.
  /// The store asks for the quotas of users here.
  void set_blocks(BlockStore& blocks);
  /// nullopt: this node has no store.
  [[nodiscard]] std::optional<BlockFigures> block_figures() const;
  /// The other daemons of the pool have changed.
  void set_others(const std::vector<NodeInfo>& nodes);
  /// How they are known has. Notes when trouble begins, and when it ends.
  void set_membership(const MembershipStatus& status);
  /// How names are taken in the whole pool. An answer comes on the control thread.
  struct NameClaims {
    using Answer = std::function<void(const Result<void>&)>;
    std::function<void(const std::string& name, const std::string& value, Answer answer)> claim;
    std::function<void(const std::string& name, const std::string& value)> unclaim;
  };
  /// From now on; without it no version of an object can be reserved.
  void set_name_claims(NameClaims claims) { name_claims_ = std::move(claims); }
  /// The certificate has been read again.
  void set_certificate_ends(const std::string& time) { facts_.protection.certificate_ends = time; }

  /// Expires leases. To be called every Pool::tick_period().
  void tick();

 private:
  /// A request, to be answered once. A value that outlives it, but not the peer.
  struct Asked {
    Service& service;
    const PeerInfo& peer;
    int body = 0;  ///< the number of what it asks for in control.proto
    std::uint64_t id = 0;
    Reply reply;

    [[nodiscard]] Response begin() const;
    /// @return false: nobody hears it.
    bool answer(const Response& response, std::vector<UniqueFd> descriptors = {}) const {
      return reply(response, std::move(descriptors));
    }
    void finish(const Response& response, const Result<void>& done) const;
    void refuse(const Error& error) const;
  };
  [[nodiscard]] Asked ask(const Request& request, const PeerInfo& peer, const Reply& reply);
  void refuse_driver(const std::string& driver, const Asked& asked);
  void open_session(const Request& request, const Asked& asked);
  void renew_lease(const Request& request, const Asked& asked);
  void close_session(const Request& request, const Asked& asked);
  void grant(const Request& request, const Asked& asked);
  void release(const Request& request, const Asked& asked);
  void fence(const Request& request, const Asked& asked);
  void flash_allocate(const Request& request, const Asked& asked);
  void flash_open(const Request& request, const Asked& asked);
  void flash_free(const Request& request, const Asked& asked);
  void stage(const Request& request, const Asked& asked);
  void flash_extents(const Request& request, const Asked& asked);
  void flash_erase(const Request& request, const Asked& asked);
  void return_memory();
  /// The session that a request names, if its token is right.
  template <typename Body>
  [[nodiscard]] Result<SessionId> session_of(const Body& body) const {
    const SessionId session(body.session_id());
    if (auto known = pool_.authenticate(session, body.token()); !known) return known.error();
    return session;
  }
  template <typename Body>
  [[nodiscard]] Result<SessionId> blocks_session(const Body& body) const;
  void blocks_open(const Request& request, const Asked& asked);
  void blocks_attach(const Request& request, const Asked& asked);
  void blocks_find(const Request& request, const Asked& asked);
  void blocks_reserve(const Request& request, const Asked& asked);
  void blocks_settle(const Request& request, const Asked& asked);
  void blocks_list(const Asked& asked);
  void blocks_clear(const Request& request, const Asked& asked);
  void objects_publish(const Request& request, const Asked& asked);
  void objects_claim(const Request& request, const Asked& asked);
  void unclaim(const std::vector<ObjectClaims::Taken>& ended);
  void objects_drop(const Request& request, const Asked& asked);
  void objects_find(const Request& request, const Asked& asked);
  void objects_open(const Request& request, const Asked& asked);
  void objects_close(const Request& request, const Asked& asked);
  void objects_list(const Request& request, const Asked& asked);
  void share_object(const Request& request, const Asked& asked, SessionId session,
                    const ObjectDirectory::Opened& opened);
  [[nodiscard]] static Result<void> check_role(const Request& request, const PeerInfo& peer);
  void resume(const Request& request, const Asked& asked);
  void upgrade(const Request& request, const Asked& asked);
  [[nodiscard]] std::string lost_by_restart() const;
  [[nodiscard]] std::uint64_t scratch_flash_bytes() const;
  [[nodiscard]] LeftOver left_by_upgrade() const;
  void keep(SessionId session, const std::string& driver);
  void renew(SessionId session);
  void drain(const Request& request, const Asked& asked);
  void evict(const Request& request, const Asked& asked);
  void list_events(const Request& request, const Asked& asked);
  [[nodiscard]] Result<void> check_session_quota(const PeerInfo& peer) const;
  [[nodiscard]] Quota quota_for(const PeerInfo& peer, const std::string& owner) const;
  [[nodiscard]] transport::LinkShare link_share_of(const std::string& owner);
  [[nodiscard]] std::vector<UserStatus> user_statuses(const PeerInfo* viewer) const;
  [[nodiscard]] Result<void> check_memory_quota(const PeerInfo& peer, SessionId of,
                                                std::uint64_t bytes) const;
  void note_grant(SessionId session, const PeerInfo& peer, std::vector<LogField> fields);
  void note_session(std::string_view what, LogLevel level, SessionId session);
  void note_act(std::string_view what, const PeerInfo& peer, std::vector<LogField> fields);
  void nodes(const Asked& asked);
  [[nodiscard]] bool shows(const std::string& owner, const PeerInfo* viewer) const;
  void status(const Asked& asked);
  void sessions(const Request& request, const Asked& asked);
  void segments(const Request& request, const Asked& asked);
  [[nodiscard]] static std::uint64_t to_ms(Duration duration);
  [[nodiscard]] bool offers(const std::string& driver, const PeerInfo& peer) const;

  Pool& pool_;
  Grants& grants_;
  Staging& staging_;
  DataLoop& data_;
  std::uint64_t ended_at_return_ = 0;  ///< sessions, when memory was last returned
  TimePoint next_return_{};
  BlockStore* blocks_ = nullptr;
  ObjectDirectory objects_;
  ObjectClaims object_claims_;
  NameClaims name_claims_;
  Keeper& keeper_;
  const Clock& clock_;
  NodeFacts facts_;
  const TimePoint started_;
  Activity activity_;
  Events events_;
  Access access_;
  std::map<std::string, std::shared_ptr<transport::LinkUse>> link_uses_;  ///< by owner
  std::map<SessionId, JobProgress> progress_;  ///< as jobs report it; ends with the session
  CheckUpgrade check_upgrade_;
  BeginUpgrade begin_upgrade_;
  bool upgrading_ = false;  ///< ends within a moment
  TakenOver taken_;
};

}  // namespace ho::daemon
