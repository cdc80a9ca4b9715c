#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_set>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "daemon/control/listener.hpp"
#include "daemon/control/service.hpp"

namespace asio {
class io_context;
}

namespace ho::daemon {

/// Accepts control connections and carries requests to the Service and answers back.
/// Limits: 1024 connections, 64 requests in flight on each, 5 s for a hello or a half-sent frame.
/// What is not our protocol closes its own connection and nothing else.
///
/// Owner: the control thread. Lifecycle: add() listeners -> start() -> stop().
class Server {
 public:
  Server(asio::io_context& io, Service& service);
  ~Server();

  /// Takes a listening socket; the descriptor is duplicated.
  [[nodiscard]] Result<void> add(int listening_fd);
  void start();
  /// Closes listeners and connections. No request is answered afterwards.
  void stop();

  [[nodiscard]] std::size_t connections() const { return connections_.size(); }

 private:
  class Connection;
  struct Listener;

  void accept(Listener& listener);
  void accept_all(Listener& listener);
  void pause(Listener& listener);
  void serve(UniqueFd fd);
  void ended(const std::shared_ptr<Connection>& connection, const Error& why);

  asio::io_context& io_;
  Service& service_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::unordered_set<std::shared_ptr<Connection>> connections_;
  std::uint64_t refused_ = 0;  ///< connections closed for garbage or limits
  TimePoint last_refusal_logged_{};
  bool stopped_ = false;
};

}  // namespace ho::daemon
