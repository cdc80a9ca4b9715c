#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/tally.hpp"
#include "common/base/unique_fd.hpp"
#include "common/tls/certificate.hpp"
#include "daemon/grant/grants.hpp"
#include "daemon/grant/staging.hpp"
#include "daemon/pool/pool.hpp"
#include "proto/control_values.hpp"

namespace hyperoffload::v1 {
class Request;
class Response;
class HelloRequest;
}  // namespace hyperoffload::v1

namespace ho::flash {
class FlashLoop;
}

namespace ho::daemon {

/// Describes the other end of a control connection.
struct PeerInfo {
  bool same_node = false;  ///< came over the Unix socket: descriptors can pass
  std::uint32_t pid = 0;   ///< as the kernel (Unix) or the peer's hello (TCP) says
  /// "uid 1000", "job trainer" (by its certificate), or the host: what stays when a job runs again.
  std::string owner;
  std::string description;  ///< "unix uid=0 pid=12", "tcp 127.0.0.1:4711 (job trainer)"
  /// By its certificate. Without one: admin for root and this daemon's own user, else job.
  tls::Role role = tls::Role::kJob;
  std::string certificate = {};  ///< the owner, by its certificate; empty: it shows none
};

/// How the daemon's listeners are protected. For people: see deploy/SECURITY.md.
struct Protection {
  bool insecure = false;                 ///< the configuration allows to go without
  std::vector<std::string> unprotected;  ///< "control", "tcp", "ucx", "ofi": plain on a network
  std::string certificate_ends;          ///< "2027-01-31 12:00:00 UTC"; empty: no TLS
};

/// What this daemon says of itself; constant after start, except the other nodes.
struct NodeFacts {
  std::string boot_id;
  std::uint64_t instance = 0;
  std::vector<NodeInfo> nodes;              ///< this one first
  const flash::FlashLoop* flash = nullptr;  ///< outlives the service; nullptr: no flash
  std::string flash_off = {};               ///< why configured flash is not there
  std::vector<DriverOff> drivers_off = {};
  std::shared_ptr<Tally> refusals = {};  ///< what is refused is counted here; nullptr: nowhere
  Protection protection = {};
};

/// Answers requests. Validates first; knows nothing of sockets.
/// Owner: the control thread. Every request is answered exactly once, at once or later.
class Service {
 public:
  using Request = hyperoffload::v1::Request;
  using Response = hyperoffload::v1::Response;
  /// Takes the answer. @return false: the peer has gone, nobody hears it.
  using Reply = std::function<bool(const Response&, std::vector<UniqueFd>)>;

  Service(Pool& pool, Grants& grants, Staging& staging, DataLoop& data, const Clock& clock,
          NodeFacts facts);

  /// The first request of a connection. @return false: refused (and answered); close the
  /// connection.
  [[nodiscard]] bool hello(const Request& request, const PeerInfo& peer, const Reply& reply);
  void handle(const Request& request, const PeerInfo& peer, const Reply& reply);
  /// An answer that says why a request was not taken up.
  void refuse(const Request& request, const Error& error, const Reply& reply);
  /// Counts what was refused without an answer.
  void count_refusal(const std::string& cause, const std::string& detail);

  /// The other daemons of the pool have changed.
  void set_others(const std::vector<NodeInfo>& nodes);
  /// The certificate has been read again.
  void set_certificate_ends(const std::string& time) { facts_.protection.certificate_ends = time; }

  /// Expires leases. To be called every Pool::tick_period().
  void tick();

 private:
  void refuse_driver(const Request& request, const std::string& driver, const PeerInfo& peer,
                     const Reply& reply);
  void open_session(const Request& request, const PeerInfo& peer, const Reply& reply);
  void renew_lease(const Request& request, const Reply& reply);
  void close_session(const Request& request, const Reply& reply);
  void grant(const Request& request, const PeerInfo& peer, const Reply& reply);
  void release(const Request& request, const Reply& reply);
  void fence(const Request& request, const Reply& reply);
  void flash_allocate(const Request& request, const Reply& reply);
  void flash_open(const Request& request, const Reply& reply);
  void flash_free(const Request& request, const Reply& reply);
  void stage(const Request& request, const Reply& reply);
  void flash_extents(const Request& request, const Reply& reply);
  void flash_erase(const Request& request, const PeerInfo& peer, const Reply& reply);
  [[nodiscard]] static Result<void> check_role(const Request& request, const PeerInfo& peer);
  void evict(const Request& request, const PeerInfo& peer, const Reply& reply);
  void nodes(const Request& request, const Reply& reply);
  void status(const Request& request, const Reply& reply);
  void sessions(const Request& request, const Reply& reply);
  void segments(const Request& request, const Reply& reply);
  [[nodiscard]] static Response answer_to(const Request& request);
  [[nodiscard]] static std::uint64_t to_ms(Duration duration);
  [[nodiscard]] Response refused(std::string_view kind, std::uint64_t id, const Error& error);
  [[nodiscard]] bool offers(const std::string& driver, const PeerInfo& peer) const;

  Pool& pool_;
  Grants& grants_;
  Staging& staging_;
  DataLoop& data_;
  const Clock& clock_;
  NodeFacts facts_;
  const TimePoint started_;
};

}  // namespace ho::daemon
