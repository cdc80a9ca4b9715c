// The HTTP server over real sockets, with short times and small numbers.
#include "daemon/web/http_server.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <string>
#include <thread>
#include <vector>

#include "daemon/control/listener.hpp"
#include "proto/control/control_address.hpp"
#include "tests/integration/daemon/daemon_process.hpp"

namespace ho::daemon {
namespace {

using std::chrono::milliseconds;

/// More than the buffers of a connection: it is being answered until the peer has read.
constexpr std::size_t kLargeBytes = 32U << 20U;

/// A server with the pages "/page" and "/large" on a thread of its own.
class Served {
 public:
  explicit Served(const HttpServer::Options& options)
      : listener_(listen()),
        address_(*ControlAddress::parse(listener_.address)),
        server_(
            io_,
            [](std::string_view path) {
              if (path == "/large") {
                return HttpServer::Answer{"text/plain", std::string(kLargeBytes, 'x')};
              }
              if (path != "/page") return HttpServer::Answer{};
              return HttpServer::Answer{"text/plain", "hello"};
            },
            options) {
    REQUIRE(server_.listen(listener_.fd.get()).ok());
    thread_ = std::thread([this] { io_.run(); });
  }
  ~Served() {
    io_.stop();
    thread_.join();
  }
  Served(const Served&) = delete;
  Served& operator=(const Served&) = delete;

  [[nodiscard]] UniqueFd connect() const {
    auto socket = dial(address_, test::soon());
    REQUIRE(socket.ok());
    return std::move(*socket);
  }
  /// All that comes back until the server closes.
  [[nodiscard]] std::string ask(const std::string& request) const {
    const UniqueFd socket = connect();
    send(socket, request);
    return answer_of(socket);
  }
  static void send(const UniqueFd& socket, const std::string& text) {
    REQUIRE(::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(text.size()));
  }
  static std::string answer_of(const UniqueFd& socket) {
    std::string out;
    const bool ended = test::eventually(milliseconds(20'000), [&] {
      char part[65536];
      ssize_t got = 0;
      while ((got = ::recv(socket.get(), part, sizeof part, MSG_DONTWAIT)) > 0) {
        out.append(part, static_cast<std::size_t>(got));
      }
      return got == 0 || (got < 0 && errno != EAGAIN);
    });
    REQUIRE(ended);
    return out;
  }

 private:
  static TcpListener listen() {
    auto made = listen_tcp({"127.0.0.1", "0"}, "http_listen");
    REQUIRE(made.ok());
    return std::move(*made);
  }

  asio::io_context io_{1};
  TcpListener listener_;
  const ControlAddress address_;
  HttpServer server_;
  std::thread thread_;
};

std::string get(const std::string& target, const std::string& host) {
  return "GET " + target + " HTTP/1.1\r\nAccept: */*\r\nhost:  " + host + " \r\n\r\n";
}

bool begins(const std::string& text, const std::string& with) { return text.rfind(with, 0) == 0; }

TEST_CASE("http: a request for another host, or for more than reading, is refused") {
  const Served served{{}};
  for (const std::string host : {"localhost", "127.0.0.1:9464", "[::1]:9", "127.9.9.9"}) {
    const std::string answer = served.ask(get("/page?a=b", host));
    CHECK(begins(answer, "HTTP/1.1 200 OK\r\n"));
    CHECK(answer.find("Content-Length: 5\r\n") != std::string::npos);
    CHECK(answer.find("default-src 'none'") != std::string::npos);
    CHECK(answer.substr(answer.size() - 9) == "\r\n\r\nhello");
  }
  for (const std::string host :
       {"pool.example", "127.0.0.1.example:80", "", "[::2]:80", "[", "["}) {
    CHECK(begins(served.ask(get("/page", host)), "HTTP/1.1 421 "));
  }
  CHECK(begins(served.ask(get("/other", "localhost")), "HTTP/1.1 404 "));
  CHECK(begins(served.ask("GET /page HTTP/1.1\r\n\r\n"), "HTTP/1.1 400 "));
  CHECK(begins(served.ask("POST /page HTTP/1.1\r\nHost: localhost\r\n\r\n"), "HTTP/1.1 405 "));
  CHECK(begins(served.ask("\x16\x03\x01\r\n\r\n"), "HTTP/1.1 400 "));
  const std::string head = served.ask("HEAD /page HTTP/1.0\r\nHost: localhost\r\n\r\n");
  CHECK(begins(head, "HTTP/1.1 200 OK\r\n"));
  CHECK(head.find("hello") == std::string::npos);
}

TEST_CASE("http: any host is served where others reach it") {
  HttpServer::Options options;
  options.loopback_hosts_only = false;
  const Served served(options);
  CHECK(begins(served.ask(get("/page", "node-1.example:9464")), "HTTP/1.1 200 OK\r\n"));
}

TEST_CASE("http: a peer has bounded time and bytes") {
  HttpServer::Options options;
  options.connections_max = 2;
  options.time_max = milliseconds(300);
  options.head_bytes_max = 4096;
  const Served served(options);
  const UniqueFd silent = served.connect();
  const UniqueFd slow = served.connect();
  Served::send(slow, "GET /page HT");
  CHECK(Served::answer_of(silent).empty());
  CHECK(Served::answer_of(slow).empty());
  CHECK(begins(served.ask(get("/page", "localhost")), "HTTP/1.1 200 OK\r\n"));
  CHECK(begins(served.ask("GET /page HTTP/1.1\r\nX: " + std::string(5000, 'x')), "HTTP/1.1 431 "));
}

TEST_CASE("http: peers that ask nothing do not shut out one that does") {
  HttpServer::Options options;
  options.connections_max = 2;
  options.time_max = std::chrono::minutes(10);
  const Served served(options);
  const UniqueFd first = served.connect();
  const UniqueFd second = served.connect();
  CHECK(begins(served.ask(get("/page", "localhost")), "HTTP/1.1 200 OK\r\n"));
  CHECK(Served::answer_of(first).empty());  // the oldest made room
  CHECK(begins(served.ask(get("/page", "localhost")), "HTTP/1.1 200 OK\r\n"));
  Served::send(second, get("/page", "localhost"));
  CHECK(begins(Served::answer_of(second), "HTTP/1.1 200 OK\r\n"));
}

TEST_CASE("http: one that is being answered makes room only where all are") {
  HttpServer::Options options;
  options.connections_max = 2;
  options.time_max = std::chrono::minutes(10);
  const Served served(options);
  const auto ask_for_large = [&] {
    UniqueFd socket = served.connect();
    Served::send(socket, get("/large", "localhost"));
    char first = 0;
    REQUIRE(test::eventually(milliseconds(20'000), [&] {
      return ::recv(socket.get(), &first, 1, MSG_DONTWAIT | MSG_PEEK) == 1;
    }));
    return socket;
  };
  const UniqueFd oldest = ask_for_large();
  const UniqueFd silent = served.connect();
  const UniqueFd next = ask_for_large();
  CHECK(Served::answer_of(silent).empty());
  CHECK(begins(served.ask(get("/page", "localhost")), "HTTP/1.1 200 OK\r\n"));
  CHECK(Served::answer_of(oldest).size() < kLargeBytes);
  CHECK(Served::answer_of(next).size() > kLargeBytes);
}

}  // namespace
}  // namespace ho::daemon
