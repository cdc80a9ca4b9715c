#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.hpp"

namespace asio {
class io_context;
}

namespace ho::daemon {

/// Answers GET and HEAD over HTTP/1.1: one request on a connection. What a peer sends is a path and
/// nothing else; it changes nothing.
///
/// Owner: the control thread, which also makes the answers. Lifecycle: listen() -> stop().
class HttpServer {
 public:
  struct Answer {
    std::string type;  ///< "text/html; charset=utf-8"; empty: not found
    std::string body;
    std::string policy = {};  ///< Content-Security-Policy; empty: nothing may be loaded
  };
  /// @param path  without its query.
  using Handler = std::function<Answer(std::string_view path)>;
  struct Options {
    /// Where there are more, one is closed: the oldest that has not asked, else the oldest.
    std::size_t connections_max = 64;
    std::size_t head_bytes_max = 8 * 1024;
    std::chrono::milliseconds time_max{5000};  ///< for a request, and for its answer
    /// Refuses requests whose Host is not this machine's loopback: a page of another site, whose
    /// name resolves to 127.0.0.1, must not read it.
    bool loopback_hosts_only = true;
  };

  HttpServer(asio::io_context& io, Handler handler, const Options& options);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  /// Serves a listening socket, whose descriptor is duplicated. Once.
  [[nodiscard]] Result<void> listen(int listening_fd);
  void stop();

 private:
  class Connection;
  struct Listener;

  void accept();
  void serve();
  void close_one();
  [[nodiscard]] std::string answer_to(std::string_view head) const;

  asio::io_context& io_;
  const Handler handler_;
  const Options options_;
  std::unique_ptr<Listener> listener_;
  std::vector<std::shared_ptr<Connection>> connections_;  ///< the oldest first
};

}  // namespace ho::daemon
