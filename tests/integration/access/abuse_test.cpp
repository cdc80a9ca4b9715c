// A daemon under more of everything than it was made for: it stays up, its memory stays bounded,
// and clients that were connected are served.
#include <control.pb.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/prng.hpp"
#include "common/base/units.hpp"
#include "proto/control/control_address.hpp"
#include "proto/control/frame.hpp"
#include "tests/integration/daemon/daemon_process.hpp"
#include "tests/support/skip.hpp"

namespace ho::test {
namespace {

namespace pb = hyperoffload::v1;
using std::chrono::seconds;

constexpr std::uint64_t kSegment = 2 * kMiB;

/// A field of the process's status, in bytes: "RssAnon:" is its own memory, "VmSize:" its address
/// space.
std::uint64_t status_bytes(pid_t pid, const std::string& field) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string word; status >> word;) {
    std::uint64_t kib = 0;
    if (word == field && status >> kib) return kib * kKiB;
  }
  FAIL("no " << field);
  return 0;
}

std::size_t descriptors(pid_t pid) {
  const std::filesystem::directory_iterator all("/proc/" + std::to_string(pid) + "/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

void allow_many_descriptors() {
  rlimit files{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &files) == 0);
  files.rlim_cur = files.rlim_max;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &files) == 0);
}

/// A connection without a hello. Invalid where none can be had now.
UniqueFd dial_raw(const std::string& address) {
  const auto parsed = ControlAddress::parse(address);
  REQUIRE(parsed.ok());
  auto fd = dial(*parsed, soon());
  return fd ? std::move(*fd) : UniqueFd();
}

/// Closes at once, and leaves no port in TIME_WAIT.
void reset(UniqueFd& fd) {
  const linger now{1, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  fd = UniqueFd();
}

/// The request that follows a hello, or anything else, as a peer sends it.
void send_some(const UniqueFd& fd, std::string_view bytes) {
  static_cast<void>(::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
}

/// A daemon with control over TCP as well, a client that is connected all the time, and what the
/// daemon took before the abuse.
struct Abused {
  Abused() {
    allow_many_descriptors();
    const auto nodes = client->nodes(soon());
    REQUIRE(nodes.ok());
    addresses = nodes->front().control_addresses;
    REQUIRE(addresses.size() == 2);
    const auto opened = client->open_session("decent", soon());
    REQUIRE(opened.ok());
    session = *opened;
    descriptors_before = descriptors(daemon.pid());
    memory_before = status_bytes(daemon.pid(), "RssAnon:");
  }
  /// The connected client has what it needs.
  void check_serves() const {
    REQUIRE(client->renew_lease(session, soon()).ok());
    GrantSpec spec;
    spec.bytes = kSegment;
    spec.driver = "local";
    const auto granted = client->grant(session, spec, soon());
    INFO((granted ? "" : granted.error().message()));
    REQUIRE(granted.ok());
    REQUIRE(client->release(session, {granted->front().id}, soon()).ok());
  }
  /// All that the abuse took has been given back.
  void check_recovers(std::uint64_t memory_more_max) {
    check_serves();
    INFO(descriptors(daemon.pid()) << " descriptors, " << descriptors_before << " before");
    REQUIRE(
        eventually(seconds(60), [&] { return descriptors(daemon.pid()) <= descriptors_before; }));
    const std::uint64_t memory = status_bytes(daemon.pid(), "RssAnon:");
    std::cout << "abuse: " << format_bytes(memory) << " of its own, " << format_bytes(memory_before)
              << " before\n";
    CHECK(memory < memory_before + memory_more_max);
  }

  TempFolder folder;
  DaemonProcess daemon{
      folder, "d", {small_config(folder, "insecure: true\ntcp_listen: \"127.0.0.1:0\"\n"), {}}};
  std::unique_ptr<ControlClient> client = connect(unix_address(folder));
  std::vector<std::string> addresses;
  Session session;
  std::size_t descriptors_before = 0;
  std::uint64_t memory_before = 0;
};

TEST_CASE("abuse: a thousand sessions are served, and their end leaves nothing") {
  Abused at;
  constexpr std::size_t kSessions = 1000;
  std::vector<std::unique_ptr<ControlClient>> clients;
  std::vector<Session> sessions;
  for (std::size_t i = 0; i < kSessions; ++i) {
    ControlClient::Options options;
    options.address = unix_address(at.folder);
    auto client = ControlClient::connect(std::move(options), soon());
    if (!client) FAIL(i << ": " << client.error().message());
    clients.push_back(std::move(*client));
    auto opened = clients.back()->open_session("one of many", soon());
    if (!opened) FAIL(i << ": " << opened.error().message());
    sessions.push_back(*opened);
  }
  for (std::size_t i = 0; i < kSessions; ++i) {
    REQUIRE(clients[i]->renew_lease(sessions[i], soon()).ok());
  }
  CHECK(at.client->status(soon())->sessions == kSessions + 1);
  const std::uint64_t each =
      (status_bytes(at.daemon.pid(), "RssAnon:") - at.memory_before) / kSessions;
  std::cout << "abuse: " << format_bytes(each) << " a session with its connection\n";
  CHECK(each < 64 * kKiB);
  at.check_serves();
  // One above the limit gets the reason, and ends nothing.
  std::vector<std::unique_ptr<ControlClient>> more;
  std::string refusal;
  while (refusal.empty() && more.size() < 64) {
    ControlClient::Options options;
    options.address = unix_address(at.folder);
    auto client = ControlClient::connect(std::move(options), soon());
    if (client) more.push_back(std::move(*client));
    if (!client) refusal = client.error().message();
  }
  CHECK(refusal.find("connections, the limit") != std::string::npos);
  more.clear();
  for (std::size_t i = 0; i < kSessions; ++i) {
    REQUIRE(clients[i]->close_session(sessions[i], soon()).ok());
  }
  clients.clear();
  CHECK(at.client->status(soon())->sessions == 1);
  at.check_recovers(16 * kMiB);
}

TEST_CASE("abuse: sessions one after the other leave no memory behind") {
  Abused at;
  const auto cycle = [&](int times) {
    for (int i = 0; i < times; ++i) {
      const auto client = connect(unix_address(at.folder));
      const auto session = client->open_session("one of many", soon());
      REQUIRE(session.ok());
      GrantSpec spec;
      spec.bytes = kSegment;
      spec.driver = "local";
      REQUIRE(client->grant(*session, spec, soon()).ok());
      REQUIRE(client->close_session(*session, soon()).ok());
    }
    return status_bytes(at.daemon.pid(), "RssAnon:");
  };
  const std::uint64_t full = cycle(1500);  // it keeps the last 1024 events of a kind
  const std::uint64_t later = cycle(3000);
  std::cout << "abuse: " << format_bytes(full) << ", after 3000 more sessions "
            << format_bytes(later) << '\n';
  CHECK(later < full + 256 * kKiB);
  at.check_recovers(16 * kMiB);
}

TEST_CASE("abuse: a flood of connections keeps nobody from being served") {
  Abused at;
  constexpr int kAttempts = 20'000;
  std::atomic<int> left{kAttempts};
  std::atomic<int> connected{0};
  const auto began = SteadyClock().now();
  std::vector<std::thread> threads;
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    threads.emplace_back([&, seed] {
      Prng random(seed + 1);
      std::vector<UniqueFd> open(16);  // so many stay, until their place is taken
      for (int i = 0; left.fetch_sub(1) > 0; ++i) {
        const auto parsed = ControlAddress::parse(at.addresses[random.below(2)]);
        auto fd = dial(*parsed, soon());
        if (!fd) continue;
        connected += 1;
        if (i % 3 == 0) send_some(*fd, std::string(1 + random.below(64), 'x'));
        if (i % 3 == 1) send_some(*fd, std::string_view("\x10\0\0", 3));
        auto& place = open[random.below(open.size())];
        if (place.valid()) reset(place);
        place = std::move(*fd);
      }
    });
  }
  int served = 0;
  while (left.load() > 0) {
    at.check_serves();
    served += 1;
  }
  for (auto& thread : threads) thread.join();
  const double took = std::chrono::duration<double>(SteadyClock().now() - began).count();
  std::cout << "abuse: " << connected / took << " connections/s, " << served
            << " rounds of requests meanwhile\n";
  CHECK(connected > kAttempts / 2);
  at.check_recovers(16 * kMiB);
}

/// Connects again and again at an even rate, as a user who may do nothing. Some attempts send bytes
/// that are not a request; a few stay open for a while.
class Flood {
 public:
  Flood(const std::string& address, double attempts_per_s)
      : address_(*ControlAddress::parse(address)),
        period_ns_(1e9 / attempts_per_s),
        thread_([this] { run(); }) {}
  ~Flood() {
    ended_ = true;
    thread_.join();
  }
  Flood(const Flood&) = delete;
  Flood& operator=(const Flood&) = delete;

  [[nodiscard]] std::uint64_t attempts() const { return attempts_; }
  [[nodiscard]] std::uint64_t connected() const { return connected_; }

 private:
  void run() {
    // The raw calls change this thread alone.
    constexpr uid_t kNobody = 65534;
    ::syscall(SYS_setresgid, kNobody, kNobody, kNobody);
    ::syscall(SYS_setresuid, kNobody, kNobody, kNobody);
    Prng random(1);
    std::vector<UniqueFd> open(64);
    const auto began = SteadyClock().now();
    while (!ended_) {
      const auto due =
          static_cast<std::uint64_t>(double((SteadyClock().now() - began).count()) / period_ns_);
      if (attempts_ >= due) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
        continue;
      }
      ++attempts_;
      // Does not wait: an attempt that finds the queue full is over.
      auto fd = dial(address_, SteadyClock().now());
      if (!fd) continue;
      ++connected_;
      if (attempts_ % 3 == 0) send_some(*fd, "not a request");
      if (attempts_ % 3 == 1) send_some(*fd, std::string_view("\x10\0\0", 3));
      auto& place = open[random.below(open.size())];
      if (place.valid()) reset(place);
      place = std::move(*fd);
    }
  }

  const ControlAddress address_;
  const double period_ns_;
  std::atomic<bool> ended_{false};
  std::atomic<std::uint64_t> attempts_{0};
  std::atomic<std::uint64_t> connected_{0};
  std::thread thread_;
};

TEST_CASE("abuse: ten thousand attempts a second for half a minute keep nobody out", "[soak]") {
  if (::geteuid() != 0) return skip("no right to connect as another user");
  constexpr double kPerSecond = 10'000;
  constexpr auto kTime = seconds(30);
  Abused at;
  REQUIRE(::chmod(at.folder.file("").c_str(), 0755) == 0);
  REQUIRE(::chmod(at.folder.file("control.sock").c_str(), 0666) == 0);
  std::uint64_t memory = 0;
  std::size_t files = 0;
  int served = 0;
  int newcomers = 0;
  Duration longest{};
  double took = 0;
  std::array<std::uint64_t, 2> attempts{};
  std::array<std::uint64_t, 2> connected{};
  {
    const auto began = SteadyClock().now();
    const Flood near(at.addresses[0], kPerSecond / 2);
    const Flood far(at.addresses[1], kPerSecond / 2);
    while (SteadyClock().now() < began + kTime) {
      const auto round = SteadyClock().now();
      at.check_serves();
      longest = std::max(longest, SteadyClock().now() - round);
      ++served;
      // Administrators get in, by the places that are kept for them.
      if (connect(unix_address(at.folder)) != nullptr) ++newcomers;
      memory = std::max(memory, status_bytes(at.daemon.pid(), "RssAnon:"));
      files = std::max(files, descriptors(at.daemon.pid()));
    }
    attempts = {near.attempts(), far.attempts()};
    connected = {near.connected(), far.connected()};
    took = std::chrono::duration<double>(SteadyClock().now() - began).count();
  }
  std::cout << "abuse: " << double(attempts[0]) / took << " and " << double(attempts[1]) / took
            << " attempts/s over the Unix socket and TCP for " << took << " s, of which "
            << double(connected[0]) / took << " and " << double(connected[1]) / took
            << " were connected; meanwhile " << served << " rounds of requests, the longest in "
            << format_duration_ns(static_cast<std::uint64_t>(longest.count())) << ", and "
            << newcomers << " new connections of root; at most " << format_bytes(memory) << " ("
            << format_bytes(at.memory_before) << " before) and " << files << " descriptors\n";
  // A machine that is busy with other work may not get there; then this says nothing of the rate.
  CHECK(double(attempts[0] + attempts[1]) / took > kPerSecond / 2);
  CHECK(memory < at.memory_before + 64 * kMiB);
  CHECK(files < at.descriptors_before + 1200);  // Server::Options::connections_max, and refusals
  at.check_recovers(16 * kMiB);
}

TEST_CASE("abuse: peers that send or read slowly are few, and not for long") {
  Abused at;
  std::vector<UniqueFd> slow;
  for (int i = 0; i < 300; ++i) {
    slow.push_back(dial_raw(at.addresses[static_cast<std::size_t>(i % 2)]));
    send_some(slow.back(), std::string_view("\x10\0\0\0", 1 + static_cast<std::size_t>(i % 4)));
  }
  // Others ask without end and never read an answer.
  std::string requests;
  pb::Request request;
  request.set_id(1);
  request.mutable_hello()->set_protocol_version(kControlProtocolVersion);
  requests = *encode_frame(request.SerializeAsString(), 0);
  request.mutable_status();
  const std::string one = *encode_frame(request.SerializeAsString(), 0);
  for (int i = 0; i < 1000; ++i) requests += one;
  std::vector<UniqueFd> deaf;
  for (int i = 0; i < 32; ++i) {
    deaf.push_back(dial_raw(at.addresses[static_cast<std::size_t>(i % 2)]));
    send_some(deaf.back(), requests);
  }
  for (int round = 0; round < 20; ++round) {
    for (auto& fd : deaf) send_some(fd, requests.substr(requests.size() - 100 * one.size()));
    at.check_serves();
  }
  CHECK(status_bytes(at.daemon.pid(), "RssAnon:") < at.memory_before + 96 * kMiB);
  // Nobody closes them but the daemon.
  std::array<char, 4096> sink{};
  for (auto& fd : slow) {
    if (!fd.valid()) continue;
    REQUIRE(eventually(seconds(60), [&] {
      const ssize_t got = ::recv(fd.get(), sink.data(), sink.size(), MSG_DONTWAIT);
      return got == 0 || (got < 0 && errno == ECONNRESET);
    }));
  }
  deaf.clear();
  at.check_recovers(32 * kMiB);
}

TEST_CASE("abuse: a name that is not UTF-8 closes its connection, and libprotobuf logs nothing") {
  Abused at;
  pb::Request request;
  request.set_id(1);
  request.mutable_open_session()->set_name("??");
  std::string bytes = request.SerializeAsString();
  bytes.replace(bytes.find("??"), 2, "\xff\xfe");
  for (const std::string& address : at.addresses) {
    const UniqueFd fd = dial_raw(address);
    send_some(fd, *encode_frame(bytes, 0));
    std::array<char, 4096> sink{};
    REQUIRE(eventually(seconds(60), [&] {
      const ssize_t got = ::recv(fd.get(), sink.data(), sink.size(), MSG_DONTWAIT);
      return got == 0 || (got < 0 && errno == ECONNRESET);
    }));
  }
  INFO(at.daemon.err());
  CHECK(at.daemon.err().find("a frame that is not a request") != std::string::npos);
  CHECK(at.daemon.err().find("protobuf") == std::string::npos);
  at.check_recovers(16 * kMiB);
}

TEST_CASE("abuse: out of descriptors it says so, serves who is there, and recovers") {
  Abused at;
  const auto most = static_cast<rlim_t>(at.descriptors_before + 4);
  rlimit before{};
  REQUIRE(::prlimit(at.daemon.pid(), RLIMIT_NOFILE, nullptr, &before) == 0);
  const rlimit limit{most, before.rlim_max};
  REQUIRE(::prlimit(at.daemon.pid(), RLIMIT_NOFILE, &limit, nullptr) == 0);
  std::vector<UniqueFd> many;
  for (int i = 0; i < 64; ++i) many.push_back(dial_raw(at.addresses[0]));
  REQUIRE(eventually(seconds(30), [&] {
    return at.daemon.err().find("cannot accept error=") != std::string::npos;
  }));
  REQUIRE(at.client->renew_lease(at.session, soon()).ok());
  GrantSpec spec;
  spec.bytes = kSegment;
  spec.driver = "local";
  const auto granted = at.client->grant(at.session, spec, soon());
  REQUIRE_FALSE(granted.ok());
  INFO(granted.error().message());
  CHECK(granted.error().code() == Errc::kExhausted);
  CHECK(granted.error().context().find("Too many open files") != std::string::npos);
  CHECK(at.client->status(soon())->ddr_granted_bytes == 0);
  many.clear();
  REQUIRE(::prlimit(at.daemon.pid(), RLIMIT_NOFILE, &before, nullptr) == 0);
  connect(unix_address(at.folder)).reset();
  at.check_recovers(16 * kMiB);
}

TEST_CASE("abuse: without memory for newcomers it serves who is there, and recovers") {
  Abused at;
  rlimit before{};
  // Grants without memory: see grants_test.cpp.
  const rlim_t most = status_bytes(at.daemon.pid(), "VmSize:") + 4 * kMiB;
  const rlimit limit{most, RLIM_INFINITY};
  REQUIRE(::prlimit(at.daemon.pid(), RLIMIT_AS, &limit, &before) == 0);
  std::vector<UniqueFd> many;
  for (int i = 0; i < 200; ++i) {
    many.push_back(dial_raw(at.addresses[static_cast<std::size_t>(i % 2)]));
    send_some(many.back(), "x");
  }
  REQUIRE(eventually(seconds(30), [&] {
    return at.daemon.err().find("no memory for one more connection") != std::string::npos;
  }));
  REQUIRE(at.client->renew_lease(at.session, soon()).ok());
  many.clear();
  REQUIRE(::prlimit(at.daemon.pid(), RLIMIT_AS, &before, nullptr) == 0);
  at.check_recovers(16 * kMiB);
}

}  // namespace
}  // namespace ho::test
