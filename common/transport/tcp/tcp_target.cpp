#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/base/check.hpp"
#include "common/base/clock.hpp"
#include "common/base/units.hpp"
#include "common/net/address.hpp"
#include "common/net/stream.hpp"
#include "common/system/unique_fd.hpp"
#include "common/transport/tcp/connection.hpp"
#include "common/transport/tcp/rail_links.hpp"
#include "common/transport/tcp/tcp_transport.hpp"

namespace ho::transport {
namespace {

using tcp::Connection;
using tcp::Session;

/// Connections that have not said hello: the oldest of more is cut.
constexpr std::size_t kSilentMax = 256;
constexpr Duration kHelloTime = std::chrono::seconds(2);
/// For one session. A job has 19 a rail at most; the others are for those that lost their link and
/// have yet to end.
constexpr std::size_t kConnectionsMax =
    2 * kRailsMax * (TcpOptions::kConnectionsMax + kLaneKinds - 1);
/// A request or an answer that stays half-way for so long ends its connection. Longer than a lease.
constexpr Duration kStuckTime = std::chrono::seconds(30);
/// A connection that moved is looked at so often before it is left to epoll: a socket that is read
/// again at once saves the wait for an event.
constexpr std::uint32_t kIdleRounds = 64;
/// Small operations come one after the other: the next is expected for so long.
constexpr Duration kSmallLinger = std::chrono::milliseconds(5);
constexpr Duration kSweepEvery = std::chrono::milliseconds(500);
constexpr int kAcceptsPerRound = 16;
constexpr int kBacklog = 1024;

/// How much of a connection's puts may wait in the kernel where the link is divided: that of 50 ms,
/// within bounds. Bytes that wait there are out of turn, and to the initiator nothing moves.
int window_bytes(std::uint64_t link_bytes_per_s) {
  const std::uint64_t bytes = std::clamp<std::uint64_t>(link_bytes_per_s / 20, 256 * kKiB, kMiB);
  return static_cast<int>(bytes);
}

/// Strangers may have so much of the thread: a step of a handshake a round, beside data.
constexpr int kShakesPerRound = 1;

/// Whether a session that was opened over the control connection is this peer's. One that was
/// opened over the Unix socket is whose token it is, with the certificate of a job or an
/// administrator.
bool belongs(const Session& session, const tls::CertificateFacts* peer) {
  if (peer == nullptr || !peer->role) return false;
  if (!session.certificate.empty()) {
    return tls::Identity{peer->name, *peer->role}.text() == session.certificate;
  }
  return *peer->role == tls::Role::kJob || *peer->role == tls::Role::kAdmin;
}

/// A listening socket. @return kAlreadyExists: the port is taken; kInvalidArgument; kIo.
Result<UniqueFd> listen_at(const TcpRail& rail) {
  const auto where = net::socket_address(rail.address, rail.port);
  if (!where) return where.error();
  if (rail.address == "0.0.0.0" || rail.address == "::") {
    return Error(Errc::kInvalidArgument, rail.address + ": peers must be able to reach it");
  }
  UniqueFd fd(::socket(where->family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return errno_error(errno, "socket");
  const int on = 1;
  (void)::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(fd.get(), where->get(), where->length) != 0 || ::listen(fd.get(), kBacklog) != 0) {
    return errno_error(errno, "listening on " + net::to_text(*where));
  }
  return fd;
}

/// The daemon's side; see make_tcp_target(). Owner thread: the daemon's data thread.
///
/// Every byte between sockets and exposed memory moves in progress(), by copies that the kernel has
/// finished when a call returns. So what was fenced, revoked or dismissed is out of reach as soon
/// as these calls return, and needs no second mapping.
class TcpTarget final : public Target, private tcp::HelloCheck {
 public:
  explicit TcpTarget(const TcpTargetOptions& options)
      : caps_{"tcp", options.rails.size()},
        refusals_(options.refusals),
        tls_(options.tls),
        traffic_(options.traffic) {}

  [[nodiscard]] Result<void> open(const std::vector<TcpRail>& rails);

  [[nodiscard]] const TargetCaps& caps() const override { return caps_; }
  [[nodiscard]] Result<std::string> admit(const Credentials& session) override;
  void dismiss(SessionId session) override;
  [[nodiscard]] Result<std::string> fence(SessionId session, const RailFence& rail) override;
  [[nodiscard]] Result<Exposure> expose(const ExposeRequest& request) override;
  [[nodiscard]] Result<void> revoke(ExposureId exposure) override;
  void shut() override;
  std::size_t progress() override;
  [[nodiscard]] int wait_descriptor() const override { return epoll_.get(); }
  [[nodiscard]] bool arm() override;

 private:
  struct Exposed {
    SessionId session;
    std::uint32_t segment = 0;
    std::uint32_t generation = 0;
  };

  [[nodiscard]] Session* admit(const tcp::Hello& hello, const tls::CertificateFacts* peer) override;
  [[nodiscard]] bool may_shake() override {
    if (shakes_left_ == 0) return false;
    --shakes_left_;
    return true;
  }
  void refused(const char* cause, const Connection& connection) override;
  void answered(const tcp::Served& request, TimePoint now) override;
  [[nodiscard]] std::size_t accept_some();
  void take(UniqueFd socket, std::uint8_t rail);
  std::size_t serve_hot();
  [[nodiscard]] bool wake_after(Duration time);
  void end_overdue();
  template <typename Condition>
  void end_where(const Condition& condition);
  void forget_ended();

  const TargetCaps caps_;
  const std::shared_ptr<Tally> refusals_;
  const std::shared_ptr<tls::ContextSlot> tls_;  ///< null: without TLS
  const std::shared_ptr<Traffic> traffic_;       ///< null: not counted
  int shakes_left_ = 0;                          ///< handshakes that may go on in this round
  const SteadyClock clock_;
  UniqueFd epoll_;
  std::string address_;
  std::vector<UniqueFd> listeners_;  ///< by rail
  tcp::RailLinks links_;
  UniqueFd timer_;        ///< wakes the thread when a link takes bytes again
  bool accepts_ = false;  ///< some connections may wait at a listener
  std::vector<std::unique_ptr<Connection>> connections_;  ///< in the order in which they came
  std::vector<Connection*> hot_;                          ///< served without an event
  std::unordered_map<SessionId, Session> sessions_;
  std::unordered_map<ExposureId, Exposed> exposures_;
  std::array<std::byte, tcp::kStagingBytes> staging_;
  TimePoint now_{};
  TimePoint last_sweep_{};
  TimePoint small_moved_{};  ///< when a connection for small operations moved
  std::uint64_t next_id_ = 1;
  bool shut_ = false;
};

Result<void> TcpTarget::open(const std::vector<TcpRail>& rails) {
  epoll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) return errno_error(errno, "epoll_create1");
  timer_ = UniqueFd(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!timer_.valid()) return errno_error(errno, "timerfd_create");
  epoll_event timer{};
  timer.events = EPOLLIN | EPOLLET;
  timer.data.ptr = &timer_;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, timer_.get(), &timer) != 0) {
    return errno_error(errno, "watching a timer");
  }
  std::vector<net::SocketAddress> addresses;
  for (const TcpRail& rail : rails) {
    auto listener = listen_at(rail);
    if (!listener) return listener.error();
    auto address = net::local_address(listener->get());
    if (!address) return address.error();
    addresses.push_back(*address);
    epoll_event event{};
    event.events = EPOLLIN | EPOLLET;
    event.data.ptr = nullptr;  // all listeners look alike
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listener->get(), &event) != 0) {
      return errno_error(errno, "watching a listener");
    }
    listeners_.push_back(std::move(*listener));
    links_.add(rail.link_bytes_per_s);
  }
  // The name stays when certificates are renewed.
  address_ = tcp::encode_rails(addresses, tls_ ? tls_->get()->own().name : "");
  return {};
}

Result<std::string> TcpTarget::admit(const Credentials& credentials) {
  if (shut_) return Error(Errc::kUnavailable, "the target is shut");
  HO_CHECK(credentials.token.size() == tcp::kTokenBytes);
  const auto [entry, first] = sessions_.try_emplace(credentials.session);
  HO_CHECK(first);
  std::memcpy(entry->second.token.data(), credentials.token.data(), tcp::kTokenBytes);
  entry->second.certificate = credentials.certificate;
  links_.join(entry->second, credentials.share);
  return address_;
}

void TcpTarget::dismiss(SessionId session) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  found->second.dismissed = true;
  end_where([&](const Connection& one) { return one.session() == &found->second; });
  links_.leave(found->second);
  if (found->second.segments.live() == 0) sessions_.erase(found);
}

Result<std::string> TcpTarget::fence(SessionId session, const RailFence& rail) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end() || rail.rail >= listeners_.size()) {
    return Error(Errc::kNotFound, "no such session, or no such rail");
  }
  Session& fenced = found->second;
  fenced.fenced[rail.rail] = std::max(fenced.fenced[rail.rail], rail.generation);
  end_where([&](const Connection& one) {
    return one.session() == &fenced && one.rail() == rail.rail &&
           one.generation() <= rail.generation;
  });
  return std::string();
}

Result<Exposure> TcpTarget::expose(const ExposeRequest& request) {
  if (shut_) return Error(Errc::kUnavailable, "the target is shut");
  if (request.memory.empty()) return Error(Errc::kInvalidArgument, "no memory to expose");
  const auto found = sessions_.find(request.session);
  if (found == sessions_.end() || found->second.dismissed) {
    return Error(Errc::kNotFound, "the session is not admitted to this driver (any more)");
  }
  const auto key = found->second.segments.add(request.memory, request.rights);
  if (!key) return Error(Errc::kExhausted, "the session has too many segments");
  const ExposureId id(next_id_++);
  exposures_.emplace(id, Exposed{request.session, key->segment, key->generation});
  return Exposure{id, tcp::encode_key(*key), {}};
}

Result<void> TcpTarget::revoke(ExposureId exposure) {
  const auto found = exposures_.find(exposure);
  if (found == exposures_.end()) return Error(Errc::kNotFound, "no such exposure");
  const Exposed exposed = found->second;
  exposures_.erase(found);
  const auto owner = sessions_.find(exposed.session);
  HO_CHECK(owner != sessions_.end());
  Session& session = owner->second;
  const auto memory = session.segments.remove(exposed.segment, exposed.generation);
  HO_CHECK(!memory.empty());
  for (const auto& one : connections_) {
    if (one->session() == &session) one->let_go(memory);
  }
  forget_ended();
  if (session.dismissed && session.segments.live() == 0) sessions_.erase(owner);
  return {};
}

void TcpTarget::shut() {
  shut_ = true;
  end_where([](const Connection&) { return true; });
  listeners_.clear();
}

template <typename Condition>
void TcpTarget::end_where(const Condition& condition) {
  for (const auto& one : connections_) {
    if (!one->ended() && condition(*one)) one->end();
  }
  forget_ended();
}

/// Not while hot_ or events are walked through.
void TcpTarget::forget_ended() {
  const auto ended = [](const auto& one) { return one->ended(); };
  std::erase_if(hot_, ended);
  std::erase_if(connections_, ended);
}

Session* TcpTarget::admit(const tcp::Hello& hello, const tls::CertificateFacts* peer) {
  const auto found = sessions_.find(SessionId(hello.session));
  const bool known = found != sessions_.end() && !found->second.dismissed &&
                     tcp::equal_secrets(found->second.token, hello.token);
  if (!known) {
    if (refusals_) refusals_->note("tcp: no such session", "or not its token");
    return nullptr;
  }
  Session& session = found->second;
  if (tls_ && !belongs(session, peer)) {
    if (refusals_) refusals_->note("tcp: another certificate than the session's", peer->name);
    return nullptr;
  }
  if (hello.generation <= session.fenced[hello.rail]) return nullptr;  // it came too late
  if (session.connections < kConnectionsMax) return &session;
  if (refusals_) refusals_->note("tcp: too many connections of a session", "");
  return nullptr;
}

void TcpTarget::refused(const char* cause, const Connection& connection) {
  if (!refusals_) return;
  const bool known = connection.session() != nullptr;
  refusals_->note(std::string("tcp: ") + cause, known ? "of a session" : "of a stranger");
}

void TcpTarget::answered(const tcp::Served& request, TimePoint now) {
  if (!traffic_) return;
  TrafficWay& way = request.op == tcp::OpCode::kPut ? traffic_->put : traffic_->get;
  way.ops.add();
  (request.denied ? way.errors : way.bytes).add(request.denied ? 1 : request.length_bytes);
  way.latency.note(now - request.begun);
}

/// @return how many came.
std::size_t TcpTarget::accept_some() {
  if (!accepts_) return 0;
  accepts_ = false;
  std::size_t count = 0;
  for (std::size_t rail = 0; rail < listeners_.size(); ++rail) {
    for (int i = 0; i < kAcceptsPerRound; ++i) {
      UniqueFd socket(
          ::accept4(listeners_[rail].get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      // None waits, or there is no descriptor for it: then it waits until the next sweep.
      if (!socket.valid() && errno != ECONNABORTED && errno != EINTR) break;
      accepts_ = accepts_ || i + 1 == kAcceptsPerRound;
      if (!socket.valid()) continue;
      take(std::move(socket), static_cast<std::uint8_t>(rail));
      ++count;
    }
  }
  return count;
}

void TcpTarget::take(UniqueFd socket, std::uint8_t rail) {
  if (const std::uint64_t rate = links_.bytes_per_s(rail); rate > 0) {
    const int window = window_bytes(rate);
    (void)::setsockopt(socket.get(), IPPROTO_TCP, TCP_WINDOW_CLAMP, &window, sizeof window);
  }
  const int fd = socket.get();
  auto stream = std::make_unique<net::Stream>(std::move(socket));
  if (tls_ && !stream->accept_tls(tls_->get())) return;
  auto made = std::make_unique<Connection>(std::move(stream), rail, now_);
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.ptr = made.get();
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return;  // closes it
  connections_.push_back(std::move(made));
  const auto silent = [](const auto& one) { return !one->ended() && one->session() == nullptr; };
  const auto count = std::count_if(connections_.begin(), connections_.end(), silent);
  if (static_cast<std::size_t>(count) <= kSilentMax) return;
  Connection& oldest = **std::find_if(connections_.begin(), connections_.end(), silent);
  refused("too many connections without a hello", oldest);
  oldest.end();
}

std::size_t TcpTarget::progress() {
  if (shut_) return 0;
  now_ = clock_.now();
  shakes_left_ = kShakesPerRound;
  std::array<epoll_event, 64> ready;
  const int count = ::epoll_wait(epoll_.get(), ready.data(), static_cast<int>(ready.size()), 0);
  for (const epoll_event& event :
       std::span(ready).first(static_cast<std::size_t>(std::max(count, 0)))) {
    if (event.data.ptr == nullptr) accepts_ = true;
    if (event.data.ptr == nullptr || event.data.ptr == &timer_) continue;
    Connection& one = *static_cast<Connection*>(event.data.ptr);
    if (one.ended()) continue;
    if ((event.events & EPOLLOUT) != 0) one.stream().set_writable();
    if (!std::exchange(one.hot, true)) hot_.push_back(&one);
    one.idle = 0;
  }
  const std::size_t events = accept_some() + serve_hot();
  if (now_ - last_sweep_ >= kSweepEvery) {
    last_sweep_ = now_;
    accepts_ = true;
    end_overdue();
  }
  return events;
}

std::size_t TcpTarget::serve_hot() {
  links_.begin_round(hot_, now_);
  const bool beside_small = now_ - small_moved_ < kSmallLinger;
  const std::size_t chunk = beside_small ? tcp::kChunkBesideSmallBytes : tcp::kChunkBytes;
  std::size_t events = 0;
  bool ended = false;
  for (Connection* const one : hot_) {
    bool moved = false;
    if (!one->ended()) {
      one->stream().set_readable();
      moved = links_.serve(*one, staging_, chunk, *this);
    }
    ended = ended || one->ended();
    if (moved) {
      ++events;
      one->idle = 0;
      if (one->small()) small_moved_ = now_;
    } else if (one->ended() || (++one->idle >= kIdleRounds && !one->waits())) {
      one->hot = false;
    }
  }
  std::erase_if(hot_, [](const Connection* one) { return !one->hot; });
  if (ended) forget_ended();
  return events;
}

/// Ends those that did not say hello in time, and those that stay half-way.
void TcpTarget::end_overdue() {
  for (const auto& one : connections_) {
    if (one->ended()) continue;
    const bool silent = one->session() == nullptr;
    if (silent && now_ - one->since() >= kHelloTime) {
      refused("no hello in time", *one);
      one->end();
    } else if (!silent && !one->waits() && one->stuck(now_ - kStuckTime)) {
      refused("a request or an answer that stays half-way", *one);
      one->end();
    }
  }
  forget_ended();
}

bool TcpTarget::arm() {
  const auto moving = [](const Connection* one) { return one->idle == 0; };
  if (accepts_ || std::any_of(hot_.begin(), hot_.end(), moving)) return false;
  const std::optional<Duration> pause = links_.pause(hot_);
  if (pause && !wake_after(*pause)) return false;
  // Bytes that come from here on are an edge, which wakes: those that do not wait for a turn were
  // read until nothing came.
  for (Connection* const one : hot_) one->hot = one->waits();
  std::erase_if(hot_, [](const Connection* one) { return !one->hot; });
  return true;
}

/// @return false: the time is too short to sleep.
bool TcpTarget::wake_after(Duration time) {
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
  if (ns <= 0) return false;
  itimerspec in{};
  in.it_value.tv_sec = ns / 1'000'000'000;
  in.it_value.tv_nsec = ns % 1'000'000'000;
  return ::timerfd_settime(timer_.get(), 0, &in, nullptr) == 0;
}

}  // namespace

Result<std::unique_ptr<Target>> make_tcp_target(const TcpTargetOptions& options) {
  if (options.rails.empty() || options.rails.size() > kRailsMax) {
    return Error(Errc::kInvalidArgument,
                 "a target listens at 1 to " + std::to_string(kRailsMax) + " addresses");
  }
  auto made = std::make_unique<TcpTarget>(options);
  if (auto opened = made->open(options.rails); !opened) return opened.error();
  return std::unique_ptr<Target>(std::move(made));
}

}  // namespace ho::transport
