#include "daemon/control/server.hpp"

#include <arpa/inet.h>
#include <control.pb.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/steady_timer.hpp>
#include <cerrno>
#include <new>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/log.hpp"
#include "proto/control/frame_channel.hpp"

namespace ho::daemon {

namespace {

namespace pb = hyperoffload::v1;

// Out of descriptors: accepting would fail at once again, so leave the backlog alone for a while.
constexpr auto kAcceptPause = std::chrono::milliseconds(100);

// Whom the kernel does not tell is nobody that a configuration names.
constexpr auto kNobody = static_cast<uid_t>(-1);

/// All groups of the process at the other end.
std::vector<gid_t> peer_groups(int fd, gid_t first) {
  std::vector<gid_t> groups(64);
  auto bytes = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
  int asked = ::getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &bytes);
  if (asked != 0 && errno == ERANGE) {  // the kernel says how much it needs
    groups.resize(bytes / sizeof(gid_t));
    asked = ::getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &bytes);
  }
  groups.resize(asked == 0 ? bytes / sizeof(gid_t) : 0);
  groups.push_back(first);
  return groups;
}

PeerInfo describe_peer(int fd, const Access& access) {
  PeerInfo peer;
  peer.sees_others = !access.hides();
  if (socket_family(fd) == AF_UNIX) {
    ucred credentials{};
    socklen_t length = sizeof(credentials);
    const int asked = ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length);
    peer.same_node = true;
    if (asked != 0) credentials = ucred{0, kNobody, kNobody};
    const LocalUser user{credentials.uid, peer_groups(fd, credentials.gid)};
    peer.role = access.role_of(user);
    peer.sees_others = access.sees_others(user);
    peer.pid = static_cast<std::uint32_t>(credentials.pid);
    peer.description =
        "unix uid=" + std::to_string(credentials.uid) + " pid=" + std::to_string(credentials.pid);
    peer.owner = "uid " + std::to_string(credentials.uid);
    return peer;
  }
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  std::array<char, INET6_ADDRSTRLEN> text{"?"};
  std::uint16_t port = 0;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0) {
    if (address.ss_family == AF_INET6) {
      const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address);
      ::inet_ntop(AF_INET6, &v6->sin6_addr, text.data(), text.size());
      port = ntohs(v6->sin6_port);
    } else {
      const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address);
      ::inet_ntop(AF_INET, &v4->sin_addr, text.data(), text.size());
      port = ntohs(v4->sin_port);
    }
  }
  peer.owner = text.data();
  peer.description = std::string("tcp ") + text.data() + ":" + std::to_string(port);
  return peer;
}

/// Over the Unix socket: others show who they are later.
bool administers(const PeerInfo& peer) { return peer.role == tls::Role::kAdmin; }

}  // namespace

struct Server::Listener {
  Listener(asio::io_context& io, int fd) : socket(io, fd), timer(io) {}
  asio::posix::stream_descriptor socket;
  asio::steady_timer timer;
};

/// One client. Alive while its channel is open or an answer to it is under way.
class Server::Connection : public std::enable_shared_from_this<Server::Connection> {
 public:
  /// @param limit  the limit that it is over: it is refused at its hello; empty: it is served.
  Connection(Server& server, FrameChannel::Socket socket, PeerInfo peer, std::string limit)
      : server_(server),
        peer_(std::move(peer)),
        counted_as_(peer_.owner),
        limit_(std::move(limit)),
        tls_(peer_.same_node || !server.tls_ ? nullptr : server.tls_->get()),
        hello_timer_(server.io_),
        channel_(std::make_shared<FrameChannel>(std::move(socket), channel_options(server, tls_))) {
  }

  void start() {
    FrameChannel::Callbacks callbacks;
    callbacks.on_frame = [self = shared_from_this()](FrameChannel::Frame frame) {
      self->take(frame);
    };
    callbacks.on_closed = [self = shared_from_this()](const Error& error) {
      self->server_.ended(self, error);
    };
    channel_->start(std::move(callbacks));
    hello_timer_.expires_after(server_.options_.hello_time_max);
    hello_timer_.async_wait([weak = weak_from_this()](std::error_code error) {
      const auto self = weak.lock();
      if (error || !self || self->greeted_ || !self->channel_->open()) return;
      self->drop(Error(Errc::kDeadline, "no hello in time"));
    });
  }

  void close() {
    hello_timer_.cancel();
    if (channel_->open()) channel_->close();
  }

  [[nodiscard]] const PeerInfo& peer() const { return peer_; }
  /// The owner that its connection is counted for: a peer's owner may change at its hello.
  [[nodiscard]] const std::string& counted_as() const { return counted_as_; }
  [[nodiscard]] bool over_limit() const { return !limit_.empty(); }
  /// Over TCP, and has not said hello.
  [[nodiscard]] bool stranger() const { return !greeted_ && !peer_.same_node; }
  [[nodiscard]] TimePoint last_frame() const { return last_frame_; }
  /// Since when it has been silent, if nothing depends on it; nullopt: it is in use.
  [[nodiscard]] std::optional<TimePoint> idle_since() const {
    if (has_session_ || in_flight_ > 0) return std::nullopt;
    return last_frame_;
  }
  /// TLS is wanted here, and is not established.
  [[nodiscard]] bool without_tls() const { return tls_ && channel_->peer() == nullptr; }
  void drop(const Error& why) {
    const auto self = shared_from_this();
    close();
    server_.ended(self, why);
  }

 private:
  static FrameChannel::Options channel_options(const Server& server,
                                               const std::shared_ptr<const tls::Context>& tls) {
    FrameChannel::Options out;
    out.frame_time_max = server.options_.frame_time_max;
    out.receive_bytes_max = server.options_.hello_bytes_max;
    out.send_queue_bytes_max = server.options_.unsent_bytes_max;
    out.send_budget = server.send_budget_;
    out.tls = tls;
    return out;
  }

  /// Takes over who the peer is from its certificate. @return kUnsupported: it speaks without TLS;
  /// kPermissionDenied: a certificate without a role.
  [[nodiscard]] Result<void> identify() {
    if (!tls_) return {};
    const tls::CertificateFacts* const facts = channel_->peer();
    if (facts == nullptr) {
      return Error(Errc::kUnsupported,
                   "this daemon wants TLS; name the folder of your certificate: --tls or "
                   "HYPEROFFLOAD_TLS (a job: the option tls)");
    }
    if (!facts->role || facts->name.empty()) {
      return Error(Errc::kPermissionDenied,
                   "the certificate \"" + facts->name +
                       "\" has no role: its subject needs one of OU=hyperoffload-job, -admin, "
                       "-reader");
    }
    peer_.role = *facts->role;
    peer_.sees_others = peer_.sees_others || peer_.role != tls::Role::kJob;
    peer_.owner = tls::Identity{facts->name, *facts->role}.text();
    peer_.certificate = peer_.owner;
    peer_.description += " (" + peer_.owner + ")";
    return {};
  }

  void take(const FrameChannel::Frame& frame) {
    pb::Request request;
    if (!request.ParseFromString(frame.payload)) {
      return drop(Error(Errc::kCorrupt, "a frame that is not a request"));
    }
    last_frame_ = SteadyClock().now();
    if (!greeted_) return greet(request);
    has_session_ = has_session_ || !Service::only_looks(request);
    if (in_flight_ >= server_.options_.requests_in_flight_max) {
      return server_.service_.refuse(
          request, peer_, Error(Errc::kBusy, "too many requests on one connection"),
          [this](const pb::Response& response, std::vector<UniqueFd> none) {
            return send(response, std::move(none));
          });
    }
    ++in_flight_;
    server_.service_.handle(request, peer_,
                            [self = shared_from_this()](const pb::Response& response,
                                                        std::vector<UniqueFd> descriptors) {
                              HO_CHECK(self->in_flight_ > 0);
                              --self->in_flight_;
                              return self->send(response, std::move(descriptors));
                            });
  }

  void greet(const pb::Request& request) {
    const auto reply = [this](const pb::Response& response, std::vector<UniqueFd> none) {
      return send(response, std::move(none));
    };
    if (!peer_.same_node && request.has_hello()) peer_.pid = request.hello().pid();
    if (auto known = identify(); !known) {
      server_.service_.refuse(request, peer_, known.error(), reply);
    } else if (over_limit()) {
      server_.service_.refuse(request, peer_, Error(Errc::kExhausted, limit_), reply);
    } else {
      greeted_ = server_.service_.hello(request, peer_, reply);
    }
    if (greeted_) {
      hello_timer_.cancel();
      channel_->limit_received(server_.options_.request_bytes_max);
      return;
    }
    // The refusal goes out first; the peer's next bytes are not read any more.
    channel_->close_after_sending();
    server_.ended(shared_from_this(), Error(Errc::kConflict, "refused at hello"));
  }

  /// @return false: the peer will not hear it.
  bool send(const pb::Response& response, std::vector<UniqueFd> descriptors) {
    auto sent = channel_->send(response.SerializeAsString(), std::move(descriptors));
    if (sent) return true;
    if (sent.error().code() == Errc::kInvalidArgument) {
      pb::Response instead;
      instead.set_id(response.id());
      instead.mutable_status()->set_code(std::string(errc_name(Errc::kExhausted)));
      instead.mutable_status()->set_message("the answer does not fit one frame");
      static_cast<void>(channel_->send(instead.SerializeAsString(), {}));
    } else if (channel_->open()) {
      drop(sent.error());
    }
    return false;
  }

  Server& server_;
  PeerInfo peer_;
  const std::string counted_as_;
  const std::string limit_;
  const std::shared_ptr<const tls::Context> tls_;
  asio::steady_timer hello_timer_;
  std::shared_ptr<FrameChannel> channel_;
  std::size_t in_flight_ = 0;
  TimePoint last_frame_ = SteadyClock().now();
  bool greeted_ = false;
  bool has_session_ = false;  ///< a job loses the node with this connection
};

Server::Server(asio::io_context& io, Service& service, const Options& options)
    : io_(io),
      service_(service),
      options_(options),
      send_budget_(std::make_shared<FrameChannel::SendBudget>(
          FrameChannel::SendBudget{options.unsent_bytes_total_max, 0})) {}
Server::~Server() { stop(); }

Result<void> Server::add(int listening_fd) {
  const int copy = ::fcntl(listening_fd, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return errno_error(errno, "duplicate listener");
  listeners_.push_back(std::make_unique<Listener>(io_, copy));
  return {};
}

void Server::start() {
  HO_CHECK(!stopped_);
  for (const auto& listener : listeners_) accept(*listener);
}

void Server::stop() {
  stopped_ = true;
  listeners_.clear();
  const auto all = std::exchange(connections_, {});
  by_owner_.clear();
  refused_ = 0;
  for (const auto& connection : all) connection->close();
}

void Server::accept(Listener& listener) {
  listener.socket.async_wait(asio::posix::stream_descriptor::wait_read,
                             [this, &listener](std::error_code error) {
                               if (error || stopped_) return;
                               accept_all(listener);
                             });
}

void Server::accept_all(Listener& listener) {
  // Bounded, so that a flood of connections does not keep the connected ones waiting.
  for (int i = 0; i < 16; ++i) {
    UniqueFd fd(
        ::accept4(listener.socket.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.valid()) {
      // Whom nobody knows yet must not end the daemon where it has no memory for one more.
      try {
        serve(std::move(fd));
      } catch (const std::bad_alloc&) {
        turn_away("no memory for one more connection");
        return pause(listener);
      }
      continue;
    }
    if (errno == EAGAIN) break;
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      turn_away(errno_error(errno, "accept").message());
      return pause(listener);
    }
  }
  accept(listener);
}

void Server::turn_away(const std::string& why) {
  if (may_log(last_pause_logged_)) log(LogLevel::kWarning, "cannot accept", {{"error", why}});
}

void Server::pause(Listener& listener) {
  listener.timer.expires_after(kAcceptPause);
  listener.timer.async_wait([this, &listener](std::error_code error) {
    if (!error && !stopped_) accept(listener);
  });
}

void Server::serve(UniqueFd fd) {
  PeerInfo peer = describe_peer(fd.get(), service_.access());
  std::string limit = find_limit(peer);
  if (!limit.empty() && drop_idle(peer)) limit = find_limit(peer);
  if (!limit.empty()) {
    service_.count_refusal("connection: too many", peer, limit);
    if (refused_ >= options_.refusals_max) return;  // closes it
  }
  const int family = socket_family(fd.get());
  if (!peer.same_node) {
    const int on = 1;
    ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }
  FrameChannel::Socket socket(io_);
  std::error_code error;
  socket.assign(asio::generic::stream_protocol(family, 0), fd.get(), error);
  if (error) {  // the kernel has no room to watch it: as if it had never come
    service_.count_refusal("connection: too many", peer, error.message());
    return;
  }
  static_cast<void>(fd.release());
  auto connection =
      std::make_shared<Connection>(*this, std::move(socket), std::move(peer), std::move(limit));
  std::size_t& count = connection->over_limit() ? refused_ : by_owner_[connection->counted_as()];
  connections_.insert(connection);
  ++count;
  try {
    if (connection->stranger()) drop_stranger();
    connection->start();
  } catch (const std::bad_alloc&) {
    forget(connection);
    connection->close();
    throw;
  }
}

/// Ends the oldest of those that have not said hello, if they are too many: what costs a stranger
/// nothing must not fill the daemon.
void Server::drop_stranger() {
  std::size_t count = 0;
  std::shared_ptr<Connection> oldest;
  for (const auto& connection : connections_) {
    if (!connection->stranger()) continue;
    ++count;
    if (!oldest || connection->last_frame() < oldest->last_frame()) oldest = connection;
  }
  if (count <= options_.strangers_max) return;
  oldest->drop(Error(Errc::kExhausted, "too many connections without a hello"));
}

/// @return the limit that one more connection of this peer would exceed; empty: none.
std::string Server::find_limit(const PeerInfo& peer) const {
  const std::size_t reserved =
      administers(peer) ? 0 : std::min(options_.connections_reserved, options_.connections_max / 2);
  const std::size_t max = options_.connections_max - reserved;
  if (connections() >= max) {
    return "the daemon has " + std::to_string(connections()) + " connections, the limit";
  }
  const auto own = by_owner_.find(peer.owner);
  if (own == by_owner_.end() || administers(peer)) return {};
  if (own->second < options_.connections_per_owner_max) return {};
  return peer.owner + " has " + std::to_string(own->second) + " connections, the limit";
}

/// Ends the connection that has been idle for longest, so that the newcomer has room.
/// @return false: none is idle.
bool Server::drop_idle(const PeerInfo& newcomer) {
  const auto own = by_owner_.find(newcomer.owner);
  const bool owner_full =
      own != by_owner_.end() && own->second >= options_.connections_per_owner_max;
  TimePoint oldest = SteadyClock().now() - options_.idle_time_min;
  std::shared_ptr<Connection> found;
  for (const auto& connection : connections_) {
    if (connection->over_limit()) continue;
    if (owner_full && connection->counted_as() != newcomer.owner) continue;
    const auto since = connection->idle_since();
    if (!since || *since > oldest) continue;
    oldest = *since;
    found = connection;
  }
  if (!found) return false;
  found->drop(Error(Errc::kExhausted, "idle, and others need the room"));
  return true;
}

void Server::forget(const std::shared_ptr<Connection>& connection) {
  if (connections_.erase(connection) == 0) return;
  if (connection->over_limit()) {
    HO_CHECK(refused_ > 0);
    --refused_;
    return;
  }
  const auto own = by_owner_.find(connection->counted_as());
  HO_CHECK(own != by_owner_.end() && own->second > 0);
  if (--own->second == 0) by_owner_.erase(own);
}

void Server::ended(const std::shared_ptr<Connection>& connection, const Error& why) {
  forget(connection);
  if (why.code() == Errc::kUnavailable) return;  // the usual end
  if (connection->without_tls()) service_.count_tls_failure();
  service_.count_refusal("connection: " + std::string(errc_name(why.code())), connection->peer(),
                         why.context());
}

/// At most one line a second, so that a peer that sends garbage cannot fill the log.
bool Server::may_log(TimePoint& last) const {
  const TimePoint now = SteadyClock().now();
  if (now - last < std::chrono::seconds(1)) return false;
  last = now;
  return true;
}

}  // namespace ho::daemon
