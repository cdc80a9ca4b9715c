// Start, refusal to start, drain, hostile peers, the service manager: real processes.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>
#include <vector>

#include "common/base/prng.hpp"
#include "common/base/units.hpp"
#include "daemon/control/listener.hpp"
#include "proto/control/control_address.hpp"
#include "proto/control/frame.hpp"
#include "tests/integration/daemon/daemon_process.hpp"
#include "tests/support/patience.hpp"

namespace ho::test {

namespace {

Exit check_config(const std::string& text) {
  const TempFolder folder;
  DaemonProcess daemon(folder, "c", {text, {}, true});
  return daemon.wait();
}

bool says(const Exit& end, const std::string& words) {
  return end.err.find(words) != std::string::npos;
}

UniqueFd dial_raw(const std::string& address) {
  auto parsed = ControlAddress::parse(address);
  REQUIRE(parsed.ok());
  auto fd = dial(*parsed, soon());
  REQUIRE(fd.ok());
  ::fcntl(fd->get(), F_SETFL, 0);
  const timeval limit{10, 0};
  ::setsockopt(fd->get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  return std::move(*fd);
}

/// Reads until the peer closes. @return false where it did not within the socket's timeout.
bool closed_by_peer(const UniqueFd& fd) {
  std::array<char, 4096> sink{};
  while (true) {
    const ssize_t count = ::recv(fd.get(), sink.data(), sink.size(), 0);
    if (count == 0) return true;
    if (count < 0) return errno == ECONNRESET;
  }
}

class NotifySocket {
 public:
  explicit NotifySocket(const std::string& name, bool abstract) : name_(name) {
    fd_ = UniqueFd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, name.c_str(), name.size());
    if (abstract) address.sun_path[0] = '\0';
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    REQUIRE(::bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), length) == 0);
    const timeval limit{10, 0};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  }
  [[nodiscard]] std::string next() const {
    std::array<char, 4096> text{};
    const ssize_t count = ::recv(fd_.get(), text.data(), text.size(), 0);
    return count > 0 ? std::string(text.data(), static_cast<std::size_t>(count)) : "";
  }
  [[nodiscard]] const std::string& name() const { return name_; }

 private:
  std::string name_;
  UniqueFd fd_;
};

}  // namespace

TEST_CASE("daemon: a config error names file, line and field and exits with 2") {
  const auto unknown = check_config("ddr_bytes: 2097152\nnonsense: 1\n");
  CHECK(unknown.code == 2);
  CHECK(says(unknown, "c.textproto:2"));
  CHECK(says(unknown, "nonsense"));
  const auto type = check_config("\nddr_bytes: \"much\"\n");
  CHECK(type.code == 2);
  CHECK(says(type, "c.textproto:2: ddr_bytes"));
  const auto colon = check_config("node_name: \"a: b\"  # c: d\nddr_bytes\n  5\n");
  CHECK(colon.code == 2);
  CHECK(says(colon, "c.textproto:3: ddr_bytes: Expected"));
  const auto range = check_config("ddr_bytes: 3145728\nsegment_bytes: 3145728\nnode_id: 4096");
  CHECK(range.code == 2);
  CHECK(says(range, ":2: segment_bytes: 3145728 (3.00 MiB) is not a power of two"));
  CHECK(says(range, ":3: node_id: 4096 is not in 0 .. 4095"));
  const auto path = check_config("ddr_bytes: 268435456\nunix_socket: \"x.sock\"");
  CHECK(path.code == 2);
  CHECK(says(path, ":2: unix_socket: \"x.sock\" is not an absolute path"));
  const auto open = check_config("ddr_bytes: 268435456\ntcp_listen: \"127.0.0.1:7700\"");
  CHECK(open.code == 2);
  CHECK(says(open, ":2: tcp_listen: without TLS everybody who reaches 127.0.0.1 uses the pool"));
  const auto any =
      check_config("ddr_bytes: 268435456\ninsecure: true\ntcp { address: \"0.0.0.0\" }");
  CHECK(any.code == 2);
  CHECK(says(any, ":3: tcp: address: 0.0.0.0 is not an address that peers can connect to"));
  CHECK(check_config("ddr_bytes: 268435456").code == 0);
}

TEST_CASE("daemon: --check-config finds what others have taken, except by its own daemon") {
  const TempFolder folder;
  const std::string base = small_config(folder);
  const auto check = [&](const std::string& config) {
    DaemonProcess daemon(folder, "c", {config, {}, true});
    return daemon.wait();
  };
  CHECK(check(base).code == 0);
  const auto missing =
      check("ddr_bytes: \"256MiB\"\nunix_socket: \"" + folder.file("none/c.sock") + "\"\n");
  CHECK(missing.code == 2);
  CHECK(says(missing, "c.textproto:2: unix_socket: folder " + folder.file("none")));
  // Folders that systemd makes when the unit, or an instance of it, starts.
  const auto in_run = [&](const std::string& socket) {
    return check("ddr_bytes: \"256MiB\"\nunix_socket: \"/run/hyperoffload-" + socket + "\"\n").code;
  };
  CHECK(in_run("ho-test-none/control.sock") == 0);
  CHECK(in_run("ho-test-none/below/control.sock") == 2);

  // Another program listens at the port that the configuration names.
  const auto other = daemon::listen_tcp({"127.0.0.1", "0"}, "other");
  REQUIRE(other.ok());
  const std::string address = other->address.substr(4);
  const std::string port = address.substr(address.rfind(':') + 1);
  const std::string control = base + "insecure: true\ntcp_listen: \"" + address + "\"\n";
  for (const std::string& config :
       {control, base + "http_listen: \"" + address + "\"\n",
        base + "insecure: true tcp { address: \"127.0.0.1\" port: " + port + " }\n"}) {
    const auto used = check(config);
    CHECK(used.code == 2);
    CHECK(says(used, "c.textproto:"));
    CHECK(says(used, address));
  }

  // A file in place of the socket, and then the daemon itself.
  std::ofstream(folder.file("control.sock")) << "words";
  const auto taken = check(base);
  CHECK(taken.code == 2);
  CHECK(says(taken, "exists and is not a socket"));
  std::filesystem::remove(folder.file("control.sock"));
  const DaemonProcess running(folder, "d", {base, {}, false});
  static_cast<void>(connect(unix_address(folder)));
  // Its own ports are taken, by itself: the port in `control` is not looked at.
  CHECK(check(control).code == 0);
}

TEST_CASE("daemon: promising more memory than the machine has is refused with numbers") {
  const auto end = check_config("node_id: 1\nddr_bytes: 1125899906842624\n");
  CHECK(end.code == 2);
  CHECK(says(end, "c.textproto:2: ddr_bytes: promises 1125899906842624 (1024 TiB), but "));
  CHECK(says(end, "at most "));
}

TEST_CASE("daemon: the example configuration is sound") {
  std::ifstream example(HO_SOURCE_FOLDER "/deploy/hyperoffloadd.example.textproto");
  REQUIRE(example.good());
  const std::string text((std::istreambuf_iterator<char>(example)), {});
  const auto end = check_config(text);
  INFO(end.err);
  CHECK(end.code == 0);
}

TEST_CASE("daemon: SIGHUP applies what needs no restart, and a wrong file changes nothing") {
  const TempFolder folder;
  const std::string good = small_config(folder);
  DaemonProcess daemon(folder, "d", {good, {}, false});
  const auto client = connect(unix_address(folder));
  const auto session = client->open_session("job", soon());
  REQUIRE(session.ok());
  const auto reload = [&](const std::string& text, const std::string& answer) {
    std::ofstream(folder.file("d.textproto")) << text;
    daemon.send(SIGHUP);
    return eventually(std::chrono::seconds(30),
                      [&] { return daemon.err().find(answer) != std::string::npos; });
  };
  CHECK(reload(good + "nodes { node_id: 9 control_addresses: \"tcp:127.0.0.1:1\" }\n"
                      "segment_bytes: 2097152 # twice\n",
               "nothing was reloaded"));
  CHECK(client->nodes(soon())->size() == 1);
  CHECK(reload(good + "nodes { node_id: 9 control_addresses: \"tcp:127.0.0.1:1\" }\n"
                      "insecure: true\ntcp_listen: \"127.0.0.1:0\"\n",
               "configuration reloaded"));
  CHECK(eventually(std::chrono::seconds(30), [&] {
    return daemon.err().find("a changed field needs a restart field=tcp_listen") !=
           std::string::npos;
  }));
  CHECK(client->nodes(soon())->size() == 2);
  CHECK(client->renew_lease(*session, soon()).ok());
}

TEST_CASE("daemon: an error of the start names the file and the line") {
  const TempFolder folder;
  DaemonProcess daemon(folder, "d",
                       {"ddr_bytes: 33554432 segment_bytes: 2097152\nunix_socket: \"" +
                            folder.file("none/c.sock") + "\"\n",
                        {},
                        false});
  const auto end = daemon.wait();
  CHECK(end.code == 1);
  CHECK(says(end, "d.textproto:2: unix_socket: "));
}

TEST_CASE("daemon: SIGTERM ends it with 0 and removes its socket") {
  const TempFolder folder;
  DaemonProcess daemon(folder, "d", {small_config(folder), {}, false});
  connect(unix_address(folder)).reset();
  struct stat info {};
  REQUIRE(::stat(folder.file("control.sock").c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0660);
  daemon.send(SIGTERM);
  const Exit end = daemon.wait();
  CHECK(end.code == 0);
  CHECK(::stat(folder.file("control.sock").c_str(), &info) != 0);
}

/// The daemon's main() has begun: it holds SIGTERM back. (fork() does so for a moment as well.)
bool holds_sigterm(pid_t pid) {
  std::error_code gone;
  const auto program = std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/exe", gone);
  if (gone || program.filename() != "hyperoffloadd") return false;
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("SigBlk:", 0) != 0) continue;
    return (std::stoull(line.substr(7), nullptr, 16) >> (SIGTERM - 1) & 1U) == 1;
  }
  return false;
}

TEST_CASE("daemon: SIGTERM at any moment of its start ends it with 0 and leaves no socket") {
  Prng random(3);
  int seen_starting = 0;
  for (int round = 0; round < 15; ++round) {
    INFO("round " << round);
    const TempFolder folder;
    struct stat info {};
    DaemonProcess daemon(folder, "d", {small_config(folder, "tcp { }\n"), {}, false});
    bool starting = false;
    while (!starting && ::stat(folder.file("control.sock").c_str(), &info) != 0) {
      starting = holds_sigterm(daemon.pid());
    }
    seen_starting += starting ? 1 : 0;
    std::this_thread::sleep_for(std::chrono::microseconds(random.below(50'000)));
    daemon.send(SIGTERM);
    const Exit end = daemon.wait();
    INFO(end.err);
    CHECK(end.code == 0);
    CHECK(::stat(folder.file("control.sock").c_str(), &info) != 0);
  }
  CHECK(seen_starting > 0);
}

TEST_CASE("daemon: draining refuses sessions and grants, and ends what does not close") {
  const TempFolder folder;
  DaemonProcess daemon(folder, "d", {small_config(folder, "log_level: \"info\"\n"), {}, false});
  const auto client = connect(unix_address(folder));
  auto session = client->open_session("held", soon());
  REQUIRE(session.ok());
  GrantSpec spec;
  spec.bytes = 2 * kMiB;
  spec.driver = "local";
  REQUIRE(client->grant(*session, spec, soon()).ok());
  daemon.send(SIGTERM);
  REQUIRE(eventually(std::chrono::seconds(60), [&] {
    auto status = client->status(soon());
    return status.ok() && status->draining;
  }));
  auto refused = client->open_session("late", soon());
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code() == Errc::kUnavailable);
  CHECK(refused.error().context().find("draining") != std::string::npos);
  CHECK(client->grant(*session, spec, soon()).error().code() == Errc::kUnavailable);
  const auto undrained = client->undrain(soon());
  REQUIRE_FALSE(undrained.ok());
  CHECK(undrained.error().code() == Errc::kConflict);
  CHECK(undrained.error().context().find("the daemon ends") != std::string::npos);
  CHECK(daemon.wait().code == 0);
}

TEST_CASE("daemon: a second daemon on the same socket is refused, a stale socket is replaced") {
  const TempFolder folder;
  DaemonProcess first(folder, "a", {small_config(folder), {}, false});
  const auto client = connect(unix_address(folder));
  DaemonProcess second(folder, "b", {small_config(folder), {}, false});
  const Exit end = second.wait();
  CHECK(end.code == 1);
  CHECK(says(end, "another daemon answers on"));
  CHECK(client->status(soon()).ok());
  first.send(SIGKILL);
  CHECK(first.wait().signal == SIGKILL);
  struct stat info {};
  REQUIRE(::stat(folder.file("control.sock").c_str(), &info) == 0);
  DaemonProcess third(folder, "c", {small_config(folder), {}, false});
  CHECK(connect(unix_address(folder))->status(soon()).ok());
}

TEST_CASE("daemon: a killed daemon is noticed at once by the control connection", "[time]") {
  const TempFolder folder;
  DaemonProcess daemon(folder, "d", {small_config(folder), {}, false});
  connect(unix_address(folder)).reset();
  std::atomic<bool> lost{false};
  ControlClient::Options options;
  options.address = unix_address(folder);
  options.on_closed = [&](const Error&) { lost = true; };
  auto client = ControlClient::connect(std::move(options), soon());
  REQUIRE(client.ok());
  daemon.send(SIGKILL);
  CHECK(eventually(within(std::chrono::seconds(2)), [&] { return lost.load(); }));
  CHECK((*client)->closed());
  CHECK((*client)->status(soon()).error().code() == Errc::kUnavailable);
}

TEST_CASE("daemon: garbage closes its own connection and nothing else") {
  const TempFolder folder;
  const DaemonProcess daemon(
      folder, "d",
      {small_config(folder, "insecure: true\ntcp_listen: \"127.0.0.1:0\"\n"), {}, false});
  const auto client = connect(unix_address(folder));
  const auto nodes = client->nodes(soon());
  REQUIRE(nodes.ok());
  Prng random(7);
  for (const std::string& address : nodes->front().control_addresses) {
    for (int round = 0; round < 20; ++round) {
      const UniqueFd fd = dial_raw(address);
      std::string bytes(64 + random.below(4096), '\0');
      for (char& byte : bytes) byte = static_cast<char>(random.next());
      // Every second message is a well-formed frame that contains garbage.
      const std::string sent = round % 2 == 0 ? bytes : *encode_frame(bytes, 0);
      static_cast<void>(::send(fd.get(), sent.data(), sent.size(), MSG_NOSIGNAL));
      CHECK(closed_by_peer(fd));
    }
    // A frame that promises more than the limit, and one that promises descriptors.
    for (const std::string& header :
         {std::string("\xff\xff\xff\x7f\0\0HO", 8), std::string("\1\0\0\0\1\0HOx", 9)}) {
      const UniqueFd fd = dial_raw(address);
      static_cast<void>(::send(fd.get(), header.data(), header.size(), MSG_NOSIGNAL));
      CHECK(closed_by_peer(fd));
    }
  }
  CHECK(client->status(soon()).ok());
}

TEST_CASE("daemon: 64 clients work at once") {
  const TempFolder folder;
  const DaemonProcess daemon(folder, "d", {small_config(folder), {}, false});
  connect(unix_address(folder)).reset();
  std::atomic<int> good{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 64; ++i) {
    threads.emplace_back([&] {
      ControlClient::Options options;
      options.address = unix_address(folder);
      auto client = ControlClient::connect(std::move(options), soon());
      if (!client) return;
      auto session = (*client)->open_session("one of many", soon());
      if (!session) return;
      for (int round = 0; round < 10; ++round) {
        if (!(*client)->renew_lease(*session, soon())) return;
      }
      if ((*client)->close_session(*session, soon())) ++good;
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(good == 64);
}

TEST_CASE("daemon: it tells the service manager that it is ready and that it stops") {
  const TempFolder folder;
  const std::string abstract = "@ho-notify-" + std::to_string(::getpid());
  const bool use_abstract = GENERATE(false, true);
  const NotifySocket notify(use_abstract ? abstract : folder.file("notify"), use_abstract);
  DaemonProcess daemon(folder, "d", {small_config(folder), notify.name(), false});
  const std::string ready = notify.next();
  CHECK(ready.find("READY=1") != std::string::npos);
  // Ready means that it can be asked now.
  ControlClient::Options options;
  options.address = unix_address(folder);
  CHECK(ControlClient::connect(std::move(options), soon()).ok());
  daemon.send(SIGTERM);
  const std::string stopping = notify.next();
  CHECK(stopping.find("STOPPING=1") != std::string::npos);
  // 1 s for the drain, 5 s for memory that is taken back, 5 s for the process.
  CHECK(stopping.find("EXTEND_TIMEOUT_USEC=11000000") != std::string::npos);
  CHECK(daemon.wait().code == 0);
}

}  // namespace ho::test
