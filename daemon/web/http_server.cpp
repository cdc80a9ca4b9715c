#include "daemon/web/http_server.hpp"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <asio/buffer.hpp>
#include <asio/generic/stream_protocol.hpp>
#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/steady_timer.hpp>
#include <asio/write.hpp>
#include <cctype>
#include <cerrno>
#include <optional>
#include <system_error>
#include <utility>

#include "common/base/check.hpp"
#include "common/system/unique_fd.hpp"
#include "proto/control/control_address.hpp"

namespace ho::daemon {
namespace {

// Out of descriptors: accepting would fail at once again.
constexpr auto kAcceptPause = std::chrono::milliseconds(100);
constexpr int kAcceptsPerRound = 16;

/// The value of a header, without blanks around it; nullopt: it is not there.
std::optional<std::string> header_of(std::string_view head, std::string_view name) {
  std::size_t begin = head.find("\r\n");
  while (begin != std::string_view::npos) {
    begin += 2;
    const std::size_t end = head.find("\r\n", begin);
    const std::string_view line = head.substr(begin, end - begin);
    const bool same = line.size() > name.size() && line[name.size()] == ':' &&
                      std::equal(name.begin(), name.end(), line.begin(), [](char a, char b) {
                        return std::tolower(static_cast<unsigned char>(a)) ==
                               std::tolower(static_cast<unsigned char>(b));
                      });
    if (same) {
      const std::string_view value = line.substr(name.size() + 1);
      const std::size_t first = value.find_first_not_of(" \t");
      if (first == std::string_view::npos) return std::string();
      return std::string(value.substr(first, value.find_last_not_of(" \t") - first + 1));
    }
    begin = end;
  }
  return std::nullopt;
}

/// "localhost:9464" -> "localhost", "[::1]:9464" -> "::1".
std::string host_name(const std::string& host) {
  if (host.empty() || host.front() != '[') return host.substr(0, host.find(':'));
  return host.substr(1, host.find(']') - 1);
}

std::string message(std::string_view status, const HttpServer::Answer& answer, bool with_body) {
  const std::string policy = answer.policy.empty() ? "default-src 'none'" : answer.policy;
  std::string out = "HTTP/1.1 " + std::string(status) + "\r\n";
  out += "Content-Type: " + answer.type + "\r\n";
  out += "Content-Length: " + std::to_string(answer.body.size()) + "\r\n";
  out += "Cache-Control: no-store\r\nConnection: close\r\n";
  out += "Content-Security-Policy: " + policy + "; frame-ancestors 'none'; base-uri 'none'\r\n";
  out += "X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n\r\n";
  if (with_body) out += answer.body;
  return out;
}

std::string refusal(std::string_view status) {
  return message(status, {"text/plain; charset=utf-8", std::string(status) + "\n"}, true);
}

}  // namespace

struct HttpServer::Listener {
  Listener(asio::io_context& io, int fd) : socket(io, fd), timer(io) {}
  asio::posix::stream_descriptor socket;
  asio::steady_timer timer;
};

/// One request and its answer.
///
///   reading --head complete--> writing --sent--> closed; --time over--> closed
class HttpServer::Connection : public std::enable_shared_from_this<HttpServer::Connection> {
 public:
  using Socket = asio::generic::stream_protocol::socket;

  Connection(HttpServer& server, Socket socket)
      : server_(server), socket_(std::move(socket)), timer_(server.io_) {}

  void start() {
    timer_.expires_after(server_.options_.time_max);
    timer_.async_wait([self = shared_from_this()](std::error_code error) {
      if (!error) self->close();
    });
    read();
  }

  /// Its request has not come yet.
  [[nodiscard]] bool is_reading() const { return answer_.empty(); }

  void close() {
    std::error_code ignored;
    timer_.cancel();
    socket_.close(ignored);
    std::erase(server_.connections_, shared_from_this());
  }

 private:
  void read() {
    const std::size_t have = head_.size();
    head_.resize(have + 1024);
    socket_.async_read_some(
        asio::buffer(head_.data() + have, 1024),
        [self = shared_from_this(), have](std::error_code error, std::size_t bytes) {
          self->head_.resize(have + bytes);
          if (!self->socket_.is_open()) return;
          if (error) return self->close();
          self->take();
        });
  }

  void take() {
    const std::size_t end = head_.find("\r\n\r\n");
    if (end != std::string::npos) {
      return write(server_.answer_to(std::string_view(head_).substr(0, end)));
    }
    if (head_.size() < server_.options_.head_bytes_max) return read();
    write(refusal("431 Request Header Fields Too Large"));
  }

  void write(std::string answer) {
    answer_ = std::move(answer);
    timer_.expires_after(server_.options_.time_max);
    timer_.async_wait([self = shared_from_this()](std::error_code error) {
      if (!error) self->close();
    });
    asio::async_write(socket_, asio::buffer(answer_),
                      [self = shared_from_this()](std::error_code, std::size_t) {
                        if (self->socket_.is_open()) self->close();
                      });
  }

  HttpServer& server_;
  Socket socket_;
  asio::steady_timer timer_;
  std::string head_;
  std::string answer_;
};

HttpServer::HttpServer(asio::io_context& io, Handler handler, const Options& options)
    : io_(io), handler_(std::move(handler)), options_(options) {}
HttpServer::~HttpServer() { stop(); }

Result<void> HttpServer::listen(int listening_fd) {
  HO_CHECK(listener_ == nullptr);
  const int copy = ::fcntl(listening_fd, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return errno_error(errno, "duplicate listener");
  listener_ = std::make_unique<Listener>(io_, copy);
  accept();
  return {};
}

void HttpServer::stop() {
  listener_.reset();
  while (!connections_.empty()) connections_.back()->close();
}

void HttpServer::accept() {
  listener_->socket.async_wait(asio::posix::stream_descriptor::wait_read,
                               [this](std::error_code error) {
                                 if (!error && listener_) serve();
                               });
}

void HttpServer::serve() {
  // Bounded, so that a flood does not keep sessions waiting.
  for (int i = 0; i < kAcceptsPerRound; ++i) {
    UniqueFd fd(::accept4(listener_->socket.native_handle(), nullptr, nullptr,
                          SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid() &&
        (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
      listener_->timer.expires_after(kAcceptPause);
      return listener_->timer.async_wait([this](std::error_code error) {
        if (!error && listener_) accept();
      });
    }
    if (!fd.valid()) break;
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    std::error_code error;
    Connection::Socket socket(io_);
    if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &length) != 0) continue;
    socket.assign(asio::generic::stream_protocol(own.ss_family, 0), fd.get(), error);
    if (error) continue;
    static_cast<void>(fd.release());
    if (connections_.size() >= options_.connections_max) close_one();
    const auto connection = std::make_shared<Connection>(*this, std::move(socket));
    connections_.push_back(connection);
    connection->start();
  }
  accept();
}

/// Makes room for another: idle ones must not shut it out.
void HttpServer::close_one() {
  const auto idle = std::find_if(connections_.begin(), connections_.end(),
                                 [](const auto& one) { return one->is_reading(); });
  (idle != connections_.end() ? *idle : connections_.front())->close();
}

/// @param head  the request line and the headers, without the empty line behind them.
std::string HttpServer::answer_to(std::string_view head) const {
  const std::string_view line = head.substr(0, head.find("\r\n"));
  const std::size_t method_end = line.find(' ');
  const std::size_t path_end = line.find(' ', method_end + 1);
  if (method_end == std::string_view::npos || path_end == std::string_view::npos ||
      line.substr(path_end + 1).substr(0, 7) != "HTTP/1.") {
    return refusal("400 Bad Request");
  }
  const std::string_view method = line.substr(0, method_end);
  if (method != "GET" && method != "HEAD") return refusal("405 Method Not Allowed");
  const auto host = header_of(head, "Host");
  if (!host) return refusal("400 Bad Request");
  if (options_.loopback_hosts_only && !is_loopback(host_name(*host))) {
    return refusal("421 Misdirected Request");
  }
  const std::string_view target = line.substr(method_end + 1, path_end - method_end - 1);
  const Answer answer = handler_(target.substr(0, target.find('?')));
  if (answer.type.empty()) return refusal("404 Not Found");
  return message("200 OK", answer, method == "GET");
}

}  // namespace ho::daemon
