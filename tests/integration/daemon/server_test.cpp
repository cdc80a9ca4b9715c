// The control server's limits over a real socket, with short times and small numbers.
#include <control.pb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <cerrno>
#include <functional>

#include "common/base/log.hpp"
#include "common/base/units.hpp"
#include "common/transport/local/local_transport.hpp"
#include "daemon/control/listener.hpp"
#include "daemon/control/server.hpp"
#include "proto/control/control_address.hpp"
#include "tests/integration/daemon/daemon_process.hpp"

namespace ho::daemon {

namespace {

namespace pb = hyperoffload::v1;
using std::chrono::milliseconds;

Pool::Options pool_options() {
  Pool::Options out;
  out.node_name = "limits";
  out.capacity_bytes = 64 * kMiB;
  out.segment_bytes = 2 * kMiB;
  out.lease = std::chrono::seconds(10);
  return out;
}

std::unique_ptr<DataLoop> make_loop() {
  std::vector<std::unique_ptr<transport::Target>> targets;
  auto local = transport::make_local_target();
  REQUIRE(local.ok());
  targets.push_back(std::move(*local));
  auto made = DataLoop::create(std::move(targets));
  REQUIRE(made.ok());
  return std::move(*made);
}

UnixListener make_listener(const std::string& path) {
  auto made = UnixListener::create(path);
  REQUIRE(made.ok());
  return std::move(*made);
}

TcpListener make_tcp_listener() {
  auto made = listen_tcp({"127.0.0.1", "0"}, "tcp_listen");
  REQUIRE(made.ok());
  return std::move(*made);
}

/// A daemon's control side in this thread.
struct Control {
  explicit Control(const Server::Options& options) : server(io, service, options) {
    set_log_level(LogLevel::kError);
    REQUIRE(server.add(listener.fd()).ok());
    REQUIRE(server.add(tcp_listener.fd.get()).ok());
    server.start();
  }
  ~Control() {
    server.stop();
    data->stop();
    grants.stop();
    io.restart();
    io.poll();
  }
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  [[nodiscard]] UniqueFd dial() const {
    ControlAddress address;
    address.path = listener.path();
    auto fd = ho::dial(address, test::soon());
    REQUIRE(fd.ok());
    return std::move(*fd);
  }
  [[nodiscard]] UniqueFd dial_tcp() const {
    const auto address = ControlAddress::parse(tcp_listener.address);
    REQUIRE(address.ok());
    auto fd = ho::dial(*address, test::soon());
    REQUIRE(fd.ok());
    return std::move(*fd);
  }
  /// Runs the control thread until `done`, for 5 s at most.
  bool run_until(const std::function<bool()>& done) {
    const auto end = std::chrono::steady_clock::now() + milliseconds(5000);
    while (!done()) {
      if (std::chrono::steady_clock::now() >= end) return false;
      io.restart();
      io.run_for(milliseconds(2));
    }
    return true;
  }

  test::TempFolder folder;
  SteadyClock clock;
  UnixListener listener = make_listener(folder.file("c.sock"));
  TcpListener tcp_listener = make_tcp_listener();
  asio::io_context io{1};
  Pool pool{pool_options(), clock.now()};
  std::unique_ptr<DataLoop> data = make_loop();
  FdStore store{0};
  Keeper keeper{store, "a test"};
  Grants grants{pool, *data, io, PagePlan{}, keeper};
  Staging staging{pool, grants, nullptr, io, {"n", {}, ""}};
  Service service{pool, grants, staging, *data, keeper, clock, {"boot", 1, {NodeInfo{}}}};
  Server server;
};

/// The peer has closed.
bool closed(const UniqueFd& fd) {
  char byte = 0;
  const ssize_t got = ::recv(fd.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK);
  return got == 0 || (got < 0 && errno == ECONNRESET);
}

void send(const UniqueFd& fd, const pb::Request& request) {
  const std::string bytes = *encode_frame(request.SerializeAsString(), 0);
  REQUIRE(::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(bytes.size()));
}

/// Reads responses until `count` have come.
std::vector<pb::Response> receive(Control& control, const UniqueFd& fd, std::size_t count) {
  std::vector<pb::Response> out;
  FrameDecoder decoder;
  const bool all = control.run_until([&] {
    std::byte buffer[4096];
    const ssize_t got = ::recv(fd.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
    std::span<const std::byte> left(buffer, got > 0 ? static_cast<std::size_t>(got) : 0);
    while (!left.empty()) {
      const auto taken = decoder.feed(left);
      REQUIRE(taken.ok());
      left = left.subspan(*taken);
      if (decoder.state() != FrameDecoder::State::kReady) continue;
      REQUIRE(out.emplace_back().ParseFromString(decoder.take().payload));
    }
    return out.size() >= count;
  });
  REQUIRE(all);
  return out;
}

void say_hello(Control& control, const UniqueFd& fd) {
  pb::Request request;
  request.set_id(1);
  request.mutable_hello()->set_protocol_version(kControlProtocolVersion);
  send(fd, request);
  REQUIRE_FALSE(receive(control, fd, 1)[0].has_status());
}

}  // namespace

TEST_CASE("server: a connection over the limit gets the reason, and one that ends makes room") {
  Server::Options options;
  options.connections_max = 2;
  options.refusals_max = 1;
  Control control(options);
  UniqueFd first = control.dial();
  const UniqueFd second = control.dial();
  REQUIRE(control.run_until([&] { return control.server.connections() == 2; }));
  const UniqueFd third = control.dial();
  const UniqueFd beyond = control.dial();
  CHECK(control.run_until([&] { return closed(beyond); }));
  pb::Request hello;
  hello.mutable_hello()->set_protocol_version(kControlProtocolVersion);
  send(third, hello);
  const pb::Response refused = receive(control, third, 1)[0];
  CHECK(refused.status().code() == "exhausted");
  CHECK(refused.status().message() == "the daemon has 2 connections, the limit");
  CHECK(control.run_until([&] { return closed(third); }));
  CHECK(control.server.connections() == 2);
  first.reset();
  REQUIRE(control.run_until([&] { return control.server.connections() == 1; }));
  const UniqueFd fourth = control.dial();
  say_hello(control, fourth);
  CHECK_FALSE(closed(second));
}

TEST_CASE("server: one host cannot take all connections, and administrators have a reserve") {
  Server::Options options;
  options.connections_max = 8;
  options.connections_reserved = 2;
  options.connections_per_owner_max = 4;
  Control control(options);
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 4; ++i) say_hello(control, strangers.emplace_back(control.dial_tcp()));
  const UniqueFd fifth = control.dial_tcp();
  pb::Request hello;
  hello.mutable_hello()->set_protocol_version(kControlProtocolVersion);
  send(fifth, hello);
  CHECK(receive(control, fifth, 1)[0].status().message() ==
        "127.0.0.1 has 4 connections, the limit");
  // This process runs the server, so it administers it over the Unix socket.
  std::vector<UniqueFd> own;
  for (int i = 0; i < 4; ++i) say_hello(control, own.emplace_back(control.dial()));
  CHECK(control.server.connections() == 8);
}

TEST_CASE("server: an idle connection makes room, one with a session does not") {
  Server::Options options;
  options.connections_max = 2;
  options.idle_time_min = milliseconds(0);
  Control control(options);
  const UniqueFd job = control.dial();
  say_hello(control, job);
  pb::Request open;
  open.set_id(2);
  open.mutable_open_session()->set_name("job");
  send(job, open);
  REQUIRE(receive(control, job, 1)[0].has_open_session());
  const UniqueFd idle = control.dial();
  say_hello(control, idle);
  const UniqueFd newcomer = control.dial();
  say_hello(control, newcomer);
  CHECK(control.run_until([&] { return closed(idle); }));
  CHECK_FALSE(closed(job));
  CHECK(control.server.connections() == 2);
}

TEST_CASE("server: who does not say hello in time is closed, who did is not") {
  Server::Options options;
  options.hello_time_max = milliseconds(100);
  Control control(options);
  const UniqueFd greeted = control.dial();
  say_hello(control, greeted);
  const UniqueFd silent = control.dial();
  CHECK(control.run_until([&] { return closed(silent); }));
  CHECK(control.server.connections() == 1);
  CHECK_FALSE(closed(greeted));
}

TEST_CASE("server: requests in flight beyond the limit are refused, each with an answer") {
  Server::Options options;
  options.requests_in_flight_max = 2;
  Control control(options);
  const UniqueFd fd = control.dial();
  say_hello(control, fd);
  pb::Request open;
  open.set_id(2);
  open.mutable_open_session()->set_name("busy");
  send(fd, open);
  const pb::Response opened = receive(control, fd, 1)[0];
  // Grants take a worker's time; all five stand in the socket before the first is answered.
  for (std::uint64_t id = 10; id < 15; ++id) {
    pb::Request request;
    request.set_id(id);
    request.mutable_grant()->set_session_id(opened.open_session().session_id());
    request.mutable_grant()->set_token(opened.open_session().token());
    request.mutable_grant()->set_bytes(8 * kMiB);
    request.mutable_grant()->set_driver("local");
    send(fd, request);
  }
  int refused = 0;
  for (const pb::Response& response : receive(control, fd, 5)) {
    if (!response.has_status()) continue;
    CHECK(response.status().code() == "busy");
    ++refused;
  }
  CHECK(refused == 3);
}

TEST_CASE("server: before its hello a peer may send little, afterwards a request's worth") {
  Server::Options options;
  options.hello_bytes_max = 100;
  options.request_bytes_max = 1000;
  Control control(options);
  pb::Request request;
  request.set_id(1);
  request.mutable_hello()->set_protocol_version(kControlProtocolVersion);
  request.GetReflection()->MutableUnknownFields(&request)->AddLengthDelimited(
      1000, std::string(200, 'x'));
  const UniqueFd early = control.dial();
  send(early, request);
  CHECK(control.run_until([&] { return closed(early); }));
  const UniqueFd fd = control.dial();
  say_hello(control, fd);
  pb::Request open;
  open.set_id(2);
  open.mutable_open_session()->set_name(std::string(500, 'x'));
  send(fd, open);
  CHECK(receive(control, fd, 1)[0].status().code() == "invalid-argument");
  open.mutable_open_session()->set_name(std::string(2000, 'x'));
  send(fd, open);
  CHECK(control.run_until([&] { return closed(fd); }));
}

TEST_CASE("listener: a TCP name is listened on at the first of its addresses that can be had") {
  const auto listener = listen_tcp({"localhost", "0"}, "tcp_listen");
  REQUIRE(listener.ok());
  CHECK(listener->address.rfind("tcp:localhost:", 0) == 0);
  CHECK(listen_tcp({"no-such-host.invalid", "0"}, "tcp_listen").error().code() ==
        Errc::kInvalidArgument);
}

}  // namespace ho::daemon
