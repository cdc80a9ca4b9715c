// Sessions, grants and leases against a real daemon.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <set>
#include <string>
#include <thread>

#include "common/base/units.hpp"
#include "tests/integration/daemon/daemon_process.hpp"
#include "tests/support/patience.hpp"
#include "tests/support/skip.hpp"

namespace ho::test {

namespace {

constexpr std::uint64_t kSegment = 2 * kMiB;

GrantSpec local_grant(std::uint64_t bytes,
                      transport::Rights rights = transport::Rights::kReadWrite) {
  GrantSpec spec;
  spec.bytes = bytes;
  spec.driver = "local";
  spec.rights = rights;
  return spec;
}

std::uint64_t granted_bytes(ControlClient& client) {
  auto status = client.status(soon());
  REQUIRE(status.ok());
  return status->ddr_granted_bytes;
}

Session open(ControlClient& client, const std::string& driver = "local") {
  auto session = client.open_session("test", soon(), driver);
  REQUIRE(session.ok());
  return *session;
}

}  // namespace

TEST_CASE("daemon: what is granted, released and closed adds up") {
  const TempFolder folder;
  const DaemonProcess daemon(folder, "d", {small_config(folder), {}, false});
  const auto client = connect(unix_address(folder));
  CHECK(client->hello().node.value() == 3);
  CHECK(client->hello().segment_bytes == kSegment);
  const Session session = open(*client);

  auto first = client->grant(session, local_grant(3 * kMiB), soon());
  REQUIRE(first.ok());
  CHECK(first->size() == 2);
  CHECK(granted_bytes(*client) == 2 * kSegment);
  auto second = client->grant(session, local_grant(kSegment), soon());
  REQUIRE(second.ok());
  CHECK(granted_bytes(*client) == 3 * kSegment);

  auto segments = client->segments(soon());
  REQUIRE(segments.ok());
  CHECK(segments->size() == 3);
  std::set<GlobalAddress> addresses;
  for (const SegmentInfo& one : *segments) {
    CHECK(one.address.parts().node == NodeId(3));
    CHECK(one.address.parts().tier == Tier::kDdr);
    addresses.insert(one.address);
  }
  CHECK(addresses.size() == 3);
  CHECK(segments->front().address.text() == "3:ddr:0x0");
  CHECK(client->release(session, {first->front().id, first->back().id}, soon()).ok());
  CHECK(granted_bytes(*client) == kSegment);
  auto again = client->release(session, {first->front().id}, soon());
  REQUIRE_FALSE(again.ok());
  CHECK(again.error().code() == Errc::kNotFound);
  CHECK(client->close_session(session, soon()).ok());
  CHECK(granted_bytes(*client) == 0);
}

TEST_CASE("daemon: asking for more than there is says what is needed and what there is") {
  const TempFolder folder;
  const DaemonProcess daemon(folder, "d", {small_config(folder), {}, false});
  const auto client = connect(unix_address(folder));
  const Session session = open(*client);
  REQUIRE(client->grant(session, local_grant(30 * kMiB), soon()).ok());
  auto refused = client->grant(session, local_grant(4 * kMiB), soon());
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code() == Errc::kExhausted);
  CHECK(refused.error().context().find("needs 4.00 MiB, pool has 2.00 MiB on nodes n3") !=
        std::string::npos);
  CHECK(granted_bytes(*client) == 30 * kMiB);
  CHECK(client->grant(session, local_grant(UINT64_MAX), soon()).error().code() == Errc::kExhausted);
}

TEST_CASE("daemon: granted memory is zeroed, writable, and SIGBUS-dead after release") {
  const TempFolder folder;
  const DaemonProcess daemon(folder, "d", {small_config(folder), {}, false});
  const auto client = connect(unix_address(folder));
  const Session session = open(*client);
  for (int round = 0; round < 2; ++round) {
    auto granted = client->grant(session, local_grant(kSegment), soon());
    REQUIRE(granted.ok());
    const UniqueFd fd = std::move(granted->front().fd);
    void* const base = ::mmap(nullptr, kSegment, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    REQUIRE(base != MAP_FAILED);
    const auto* bytes = static_cast<const unsigned char*>(base);
    CHECK(std::all_of(bytes, bytes + kSegment, [](unsigned char byte) { return byte == 0; }));
    std::memset(base, 0x5a, kSegment);
    CHECK(::ftruncate(fd.get(), 2 * kSegment) != 0);
    REQUIRE(client->release(session, {granted->front().id}, soon()).ok());
    const pid_t child = ::fork();
    if (child == 0) {
      std::signal(SIGBUS, SIG_DFL);
      *static_cast<volatile unsigned char*>(base) = 1;
      ::_exit(0);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    // A sanitizer's own handler may turn the signal into an exit; it never goes well.
    CHECK_FALSE((WIFEXITED(status) && WEXITSTATUS(status) == 0));
    ::munmap(base, kSegment);
  }
}

TEST_CASE("daemon: a client that truncates or extends its segment harms no other client") {
  const TempFolder folder;
  const DaemonProcess daemon(folder, "d", {small_config(folder), {}, false});
  const auto client = connect(unix_address(folder));
  const Session session = open(*client);
  auto granted = client->grant(session, local_grant(2 * kSegment), soon());
  REQUIRE(granted.ok());
  REQUIRE(granted->size() == 2);
  const int fd = granted->front().fd.get();
  CHECK(::ftruncate(fd, kSegment + 4096) != 0);
  CHECK(errno == EPERM);
  CHECK(::fallocate(fd, 0, kSegment, 4096) != 0);
  // A client that could seal the file against truncation would keep the memory after its grant.
  for (const int seal : {F_SEAL_SHRINK, F_SEAL_WRITE, F_SEAL_FUTURE_WRITE}) {
    CHECK(::fcntl(fd, F_ADD_SEALS, seal) != 0);
    CHECK(errno == EPERM);
  }
  REQUIRE(::ftruncate(fd, 0) == 0);
  CHECK(::ftruncate(fd, kSegment) != 0);  // nor can what was cut grow back
  const int other = granted->back().fd.get();
  CHECK(::pwrite(other, "x", 1, kSegment - 1) == 1);
  REQUIRE(client->release(session, {granted->front().id, granted->back().id}, soon()).ok());
  struct stat now {};
  REQUIRE(::fstat(other, &now) == 0);
  CHECK(now.st_size == 0);
  CHECK(granted_bytes(*client) == 0);
  auto again = client->grant(session, local_grant(2 * kSegment), soon());
  REQUIRE(again.ok());
  CHECK(::pwrite(again->front().fd.get(), "x", 1, kSegment - 1) == 1);
}

TEST_CASE("daemon: a read-only grant's descriptor cannot be mapped writable") {
  const TempFolder folder;
  const DaemonProcess daemon(folder, "d", {small_config(folder), {}, false});
  const auto client = connect(unix_address(folder));
  const Session session = open(*client);
  auto granted = client->grant(session, local_grant(kSegment, transport::Rights::kRead), soon());
  REQUIRE(granted.ok());
  const int fd = granted->front().fd.get();
  CHECK(::mmap(nullptr, kSegment, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
  CHECK(errno == EACCES);
  void* const base = ::mmap(nullptr, kSegment, PROT_READ, MAP_SHARED, fd, 0);
  REQUIRE(base != MAP_FAILED);
  ::munmap(base, kSegment);
  // Nor can the file behind it, opened anew.
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  const UniqueFd again(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!again.valid()) return;  // some kernels refuse even that
  CHECK(::mmap(nullptr, kSegment, PROT_READ | PROT_WRITE, MAP_SHARED, again.get(), 0) ==
        MAP_FAILED);
  CHECK(::pwrite(again.get(), "x", 1, 0) == -1);
}

/// Huge pages for the length of a test; gives back what it took.
class HugePages {
 public:
  explicit HugePages(std::uint64_t pages) : before_(read("nr_hugepages")) {
    write(before_ + pages);
    enough_ = read("free_hugepages") >= pages + read("resv_hugepages");
  }
  ~HugePages() { write(before_); }
  HugePages(const HugePages&) = delete;
  HugePages& operator=(const HugePages&) = delete;
  [[nodiscard]] bool enough() const { return enough_; }

 private:
  static std::string folder() { return "/sys/kernel/mm/hugepages/hugepages-2048kB/"; }
  static std::uint64_t read(const std::string& name) {
    std::uint64_t value = 0;
    std::ifstream(folder() + name) >> value;
    return value;
  }
  static void write(std::uint64_t pages) { std::ofstream(folder() + "nr_hugepages") << pages; }

  const std::uint64_t before_;
  bool enough_ = false;
};

TEST_CASE("daemon: grants of huge pages work over every driver") {
  const HugePages pages(16);
  if (!pages.enough()) return skip("16 huge pages are not available: needs root and free memory");
  const TempFolder folder;
  const DaemonProcess daemon(folder, "d", {small_config(folder, "tcp { }\n"), {}, false});
  const auto client = connect(unix_address(folder));
  const auto status = client->status(soon());
  REQUIRE(status.ok());
  if (status->page_kind != "hugetlb-2M") return skip("others took the huge pages first");
  GrantSpec spec;
  spec.bytes = 2 * kSegment;
  spec.driver = GENERATE(as<std::string>{}, "local", "tcp");
  const Session session = open(*client, spec.driver);
  spec.rights = GENERATE(transport::Rights::kReadWrite, transport::Rights::kRead);
  INFO(spec.driver);
  const auto granted = client->grant(session, spec, soon());
  if (!granted.ok()) FAIL(granted.error().message());
  const auto segments = client->segments(soon());
  REQUIRE(segments.ok());
  REQUIRE(segments->size() == 2);
  CHECK(segments->front().page_kind == "hugetlb-2M");
  CHECK(client->release(session, {granted->front().id, granted->back().id}, soon()).ok());
}

TEST_CASE("daemon: a session answers to its token only") {
  const TempFolder folder;
  const DaemonProcess daemon(folder, "d", {small_config(folder), {}, false});
  const auto client = connect(unix_address(folder));
  Session session = open(*client);
  session.token[0] = static_cast<char>(session.token[0] ^ 1);
  CHECK(client->renew_lease(session, soon()).error().code() == Errc::kPermissionDenied);
  CHECK(client->grant(session, local_grant(kSegment), soon()).error().code() ==
        Errc::kPermissionDenied);
  CHECK(client->close_session(session, soon()).error().code() == Errc::kPermissionDenied);
}

TEST_CASE("daemon: a grant without memory fails with the reason, and is logged") {
  const TempFolder folder;
  const DaemonProcess daemon(folder, "d", {small_config(folder), {}, false});
  const auto client = connect(unix_address(folder));
  const Session session = open(*client);
  // From now on it can map less than a segment more.
  std::uint64_t pages = 0;
  std::ifstream("/proc/" + std::to_string(daemon.pid()) + "/statm") >> pages;
  REQUIRE(pages > 0);
  const rlim_t most = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) + kMiB;
  const rlimit limit{most, most};
  REQUIRE(::prlimit(daemon.pid(), RLIMIT_AS, &limit, nullptr) == 0);
  const auto granted = client->grant(session, local_grant(kSegment), soon());
  REQUIRE_FALSE(granted.ok());
  CHECK(granted.error().code() == Errc::kExhausted);
  CHECK(granted.error().context().find("Cannot allocate memory") != std::string::npos);
  CHECK(daemon.err().find("a grant failed session=1 bytes=\"2.00 MiB\" driver=local") !=
        std::string::npos);
  CHECK(client->status(soon())->ddr_granted_bytes == 0);
}

TEST_CASE("daemon: an evicted session loses its memory and gets the reason") {
  const TempFolder folder;
  const DaemonProcess daemon(folder, "d", {small_config(folder), {}, false});
  const auto client = connect(unix_address(folder));
  const Session session = open(*client);
  REQUIRE(client->grant(session, local_grant(2 * kSegment), soon()).ok());
  const auto administrator = connect(unix_address(folder));
  REQUIRE(administrator->evict(session.id, soon()).ok());
  CHECK(administrator->status(soon())->ddr_granted_bytes == 0);
  CHECK(administrator->sessions(soon())->empty());
  const auto renewed = client->renew_lease(session, soon());
  REQUIRE_FALSE(renewed.ok());
  CHECK(renewed.error().code() == Errc::kNotFound);
  CHECK(renewed.error().context().find("an administrator ended it") != std::string::npos);
  CHECK(administrator->evict(session.id, soon()).error().code() == Errc::kNotFound);
  CHECK(daemon.err().find("session evicted") != std::string::npos);
}

TEST_CASE("daemon: a drained node refuses what is new, and tells its jobs with each renewal") {
  const TempFolder folder;
  const DaemonProcess daemon(folder, "d", {small_config(folder), {}, false});
  const auto client = connect(unix_address(folder));
  const Session session = open(*client);
  REQUIRE(client->grant(session, local_grant(2 * kSegment), soon()).ok());
  CHECK_FALSE(client->renew_lease(session, soon())->drained);
  const auto administrator = connect(unix_address(folder));
  const auto left = administrator->drain(soon());
  REQUIRE(left.ok());
  CHECK(left->sessions == 1);
  CHECK(left->granted_bytes == 2 * kSegment);
  CHECK(client->renew_lease(session, soon())->drained);
  const auto refused = client->grant(session, local_grant(kSegment), soon());
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code() == Errc::kUnavailable);
  CHECK(refused.error().context().find("is drained") != std::string::npos);
  CHECK(administrator->open_session("late", soon()).error().code() == Errc::kUnavailable);
  CHECK(administrator->status(soon())->drained);
  CHECK(granted_bytes(*administrator) == 2 * kSegment);
  REQUIRE(client->close_session(session, soon()).ok());
  CHECK(administrator->drain(soon())->sessions == 0);
  REQUIRE(administrator->undrain(soon()).ok());
  CHECK_FALSE(administrator->status(soon())->draining);
  CHECK(client->open_session("again", soon()).ok());
}

constexpr std::uint64_t kLeaseMs = 1500;

TEST_CASE("daemon: a killed client's bytes are free within one lease", "[time]") {
  const TempFolder folder;
  const DaemonProcess daemon(folder, "d", {small_config(folder, "", kLeaseMs), {}, false});
  const auto watcher = connect(unix_address(folder));
  const Session other = open(*watcher);
  REQUIRE(watcher->grant(other, local_grant(kSegment), soon()).ok());
  int ready[2];
  REQUIRE(::pipe2(ready, O_CLOEXEC) == 0);
  const std::string address = unix_address(folder);
  const std::string bytes = std::to_string(4 * kSegment);
  const pid_t child = ::fork();
  if (child == 0) {
    // A program of its own: this process has threads, which a forked copy must not go on with.
    ::dup2(ready[1], STDOUT_FILENO);
    ::execl(HO_HOLDING_CLIENT, HO_HOLDING_CLIENT, address.c_str(), bytes.c_str(), nullptr);
    ::_exit(127);
  }
  ::close(ready[1]);
  char answer = 0;
  REQUIRE(::read(ready[0], &answer, 1) == 1);
  REQUIRE(answer == 'y');
  REQUIRE(watcher->renew_lease(other, soon()).ok());
  CHECK(granted_bytes(*watcher) == 5 * kSegment);
  REQUIRE(::kill(child, SIGKILL) == 0);
  REQUIRE(::waitpid(child, nullptr, 0) == child);
  // The lease, one tick, and slack.
  CHECK(eventually(within(std::chrono::milliseconds(kLeaseMs + 1000)), [&] {
    return watcher->renew_lease(other, soon()).ok() && granted_bytes(*watcher) == kSegment;
  }));
  ::close(ready[0]);
}

TEST_CASE("daemon: time in which the daemon was stopped does not count against leases", "[time]") {
  const TempFolder folder;
  const DaemonProcess daemon(folder, "d", {small_config(folder, "", kLeaseMs), {}, false});
  const auto client = connect(unix_address(folder));
  const Session session = open(*client);
  REQUIRE(client->grant(session, local_grant(kSegment), soon()).ok());
  daemon.send(SIGSTOP);
  const auto late = client->status(SteadyClock().now() + std::chrono::milliseconds(300));
  CHECK(late.error().code() == Errc::kDeadline);
  std::this_thread::sleep_for(std::chrono::milliseconds(kLeaseMs + 500));
  daemon.send(SIGCONT);
  CHECK(client->renew_lease(session, soon()).ok());
  CHECK(granted_bytes(*client) == kSegment);
  // And a lease that nobody renews still lapses afterwards.
  CHECK(eventually(within(std::chrono::milliseconds(kLeaseMs + 2000)),
                   [&] { return granted_bytes(*client) == 0; }));
  CHECK(client->renew_lease(session, soon()).error().code() == Errc::kNotFound);
}

TEST_CASE("daemon: memory that is granted after its request's deadline is released again") {
  const TempFolder folder;
  const DaemonProcess daemon(folder, "d", {small_config(folder), {}, false});
  const auto client = connect(unix_address(folder));
  const Session session = open(*client);
  constexpr std::uint64_t kAll = 32 * kMiB;
  daemon.send(SIGSTOP);
  const auto late = client->grant(session, local_grant(kAll),
                                  SteadyClock().now() + std::chrono::milliseconds(50));
  daemon.send(SIGCONT);
  CHECK(late.error().code() == Errc::kDeadline);
  // The daemon takes requests in their order, so the late one has the whole pool first.
  CHECK(eventually(within(std::chrono::seconds(5)), [&] {
    return client->renew_lease(session, soon()).ok() &&
           client->grant(session, local_grant(kAll), soon()).ok();
  }));
}

TEST_CASE("daemon: tcp grants carry keys and no descriptors, also over TCP") {
  const TempFolder folder;
  const DaemonProcess daemon(
      folder, "d",
      {small_config(folder, "insecure: true\ntcp_listen: \"127.0.0.1:0\"\ntcp { }\n"), {}, false});
  const auto near = connect(unix_address(folder));
  CHECK(near->hello().drivers.size() == 2);
  const auto nodes = near->nodes(soon());
  REQUIRE(nodes.ok());
  REQUIRE(nodes->front().control_addresses.size() == 2);
  const auto far = connect(nodes->front().control_addresses[1]);
  REQUIRE(far->hello().drivers.size() == 1);
  CHECK(far->hello().drivers[0].driver == "tcp");
  GrantSpec spec;
  spec.bytes = 2 * kSegment;
  spec.driver = "tcp";
  const Session session = open(*far, "tcp");
  CHECK_FALSE(session.address.empty());
  auto granted = far->grant(session, spec, soon());
  REQUIRE(granted.ok());
  REQUIRE(granted->size() == 2);
  CHECK_FALSE(granted->front().fd.valid());
  CHECK_FALSE(granted->front().key.empty());
  CHECK(granted->front().key != granted->back().key);
  CHECK(far->grant(session, local_grant(kSegment), soon()).error().code() == Errc::kUnsupported);
  CHECK(far->close_session(session, soon()).ok());
  CHECK(granted_bytes(*near) == 0);
}

}  // namespace ho::test
