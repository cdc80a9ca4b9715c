#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "daemon/control/listener.hpp"
#include "daemon/control/service.hpp"
#include "proto/control/frame_channel.hpp"

namespace asio {
class io_context;
}

namespace ho::daemon {

/// Accepts control connections and carries requests to the Service and answers back, within the
/// limits of Options. Bytes that break the protocol close only their own connection.
///
/// Owner: the control thread. Lifecycle: add() listeners -> start() -> stop().
class Server {
 public:
  struct Options {
    std::size_t connections_max = 1024;
    std::size_t connections_reserved = 32;        ///< the last ones are for administrators
    std::size_t connections_per_owner_max = 512;  ///< of one user or host; not of administrators
    /// Connections over a limit that wait for their hello, to be refused with the reason.
    std::size_t refusals_max = 64;
    /// Connections without a session that were silent for so long make room for others.
    std::chrono::milliseconds idle_time_min{5000};
    std::size_t requests_in_flight_max = 64;         ///< on one connection
    std::chrono::milliseconds hello_time_max{5000};  ///< with the handshake of TLS
    /// Connections over TCP that have not said hello; the oldest of more is closed.
    std::size_t strangers_max = 128;
    std::chrono::milliseconds frame_time_max{5000};  ///< for a half-sent frame
    /// A hello is some hundred bytes; the largest request names the segments it releases.
    std::uint32_t hello_bytes_max = 4 * 1024;
    std::uint32_t request_bytes_max = 256 * 1024;
    std::size_t unsent_bytes_max = 8 * std::size_t{1024 * 1024};  ///< for one connection
    std::size_t unsent_bytes_total_max = 64 * std::size_t{1024 * 1024};
  };

  Server(asio::io_context& io, Service& service) : Server(io, service, Options()) {}
  Server(asio::io_context& io, Service& service, const Options& options);
  ~Server();

  /// Takes a listening socket; the descriptor is duplicated.
  [[nodiscard]] Result<void> add(int listening_fd);
  /// From now on TCP connections need TLS and are known by their certificates; null: neither.
  void set_tls(std::shared_ptr<const tls::ContextSlot> slot) { tls_ = std::move(slot); }
  void start();
  /// Closes listeners and connections. No request is answered afterwards.
  void stop();

  /// Those that are refused at their hello do not count.
  [[nodiscard]] std::size_t connections() const { return connections_.size() - refused_; }

 private:
  class Connection;
  struct Listener;

  void accept(Listener& listener);
  void accept_all(Listener& listener);
  /// Tells why a connection was not accepted.
  void turn_away(const std::string& why);
  void pause(Listener& listener);
  void serve(UniqueFd fd);
  void ended(const std::shared_ptr<Connection>& connection, const Error& why);
  void forget(const std::shared_ptr<Connection>& connection);
  [[nodiscard]] std::string find_limit(const PeerInfo& peer) const;
  [[nodiscard]] bool drop_idle(const PeerInfo& newcomer);
  void drop_stranger();

  [[nodiscard]] bool may_log(TimePoint& last) const;

  asio::io_context& io_;
  Service& service_;
  const Options options_;
  const std::shared_ptr<FrameChannel::SendBudget> send_budget_;
  std::shared_ptr<const tls::ContextSlot> tls_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::unordered_set<std::shared_ptr<Connection>> connections_;
  std::map<std::string, std::size_t> by_owner_;  ///< counts connections_ without refused ones
  std::size_t refused_ = 0;                      ///< counts connections_ that get a refusal
  TimePoint last_pause_logged_{};
  bool stopped_ = false;
};

}  // namespace ho::daemon
