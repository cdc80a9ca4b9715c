// What every driver promises when keys turn bad, targets stop or die, and initiators are killed.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <array>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstring>
#include <thread>
#include <utility>

#include "common/base/checksum.hpp"
#include "common/base/prng.hpp"
#include "common/system/unique_fd.hpp"
#include "tests/conformance/transport/rig.hpp"
#include "tests/support/patience.hpp"

namespace ho::test {
namespace {

using namespace std::chrono_literals;
using transport::Rights;

/// For a child that should have been killed long before.
constexpr Duration kVictimLife = 30s;

#define HO_ANY_DRIVER()                                                                            \
  const std::string driver = GENERATE(from_range(drivers({"local", "tcp", "ofi", "ucx", "sim"}))); \
  INFO("driver " << driver);                                                                       \
  const std::unique_ptr<Rig> rig = make_rig(driver)

TEST_CASE("transport: a wrong key is refused and the peer's other regions go on") {
  // local has no such test: its right of access is the descriptor itself.
  const std::string driver = GENERATE(from_range(drivers({"tcp", "ofi", "ucx", "sim"})));
  INFO("driver " << driver);
  const std::unique_ptr<Rig> rig = make_rig(driver);
  Bench bench(*rig, kMiB, kMiB);
  Exposed forged = bench.exposed;
  forged.key[0] = forged.key[0] == '1' ? '2' : '1';
  const auto attached = bench.initiator->attach(bench.peer, rig->grant(forged));
  if (attached) {
    REQUIRE(bench.initiator
                ->submit(transport::MemoryOp{transport::Direction::kGet, OpId(1),
                                             bench.memory().first(64), bench.local, *attached, 0,
                                             in(*rig, 5s)})
                .ok());
    REQUIRE(collect(*rig, *bench.initiator, 1)[0].code == Errc::kPermissionDenied);
  } else {
    REQUIRE((attached.error().code() == Errc::kPermissionDenied ||
             attached.error().code() == Errc::kInvalidArgument));
  }
  REQUIRE(bench.get(2, {0, 0, 4096}).ok());
  REQUIRE(collect(*rig, *bench.initiator, 1)[0].code == Errc::kOk);
  check_serves(*rig, bench.target);
}

TEST_CASE("transport: after a revocation nothing is read or written by the old grant") {
  HO_ANY_DRIVER();
  Bench bench(*rig, 2 * kMiB, 2 * kMiB);
  fill(bench.memory(), 21);
  REQUIRE(bench.put(1, {0, 0, kMiB}).ok());
  REQUIRE(collect(*rig, *bench.initiator, 1)[0].code == Errc::kOk);
  const Rig::Truth truth = rig->revoke(bench.exposed);
  const bool kept = truth == Rig::Truth::kKept;
  const std::uint64_t before = kept ? checksum64(bench.exposed.truth) : 0;
  for (std::uint64_t size : {std::uint64_t{64}, std::uint64_t{kMiB}}) {
    const auto put = bench.put(2, {kMiB, kMiB, size}, 2s);
    const Errc code = put ? collect(*rig, *bench.initiator, 1)[0].code : put.error().code();
    INFO(errc_name(code));
    REQUIRE((code == Errc::kPermissionDenied || code == Errc::kUnavailable));
    const auto get = bench.get(3, {0, 0, size}, 2s);
    const Errc get_code = get ? collect(*rig, *bench.initiator, 1)[0].code : get.error().code();
    REQUIRE((get_code == Errc::kPermissionDenied || get_code == Errc::kUnavailable));
  }
  if (kept) REQUIRE(checksum64(bench.exposed.truth) == before);
  check_serves(*rig, bench.target);
}

TEST_CASE("transport: memory that is given back is not touched, and a put keeps the bytes it had") {
  const std::string driver = GENERATE(from_range(drivers({"tcp", "sim"})));
  INFO("driver " << driver);
  const std::unique_ptr<Rig> rig = make_rig(driver);
  constexpr std::uint64_t kOps = 8;
  constexpr std::uint64_t kHalf = kOps * kMiB;
  std::size_t cut = 0;
  for (std::uint64_t round = 0; round < 12; ++round) {
    INFO("round " << round);
    Bench bench(*rig, 2 * kHalf, 2 * kHalf);
    REQUIRE(bench.initiator->caps().gives_back);
    fill(bench.exposed.truth, 41 + round);
    fill(bench.memory(), 71 + round);
    const std::vector<std::byte> put(bench.memory().begin(), bench.memory().begin() + kHalf);
    std::vector<std::byte> got(bench.exposed.truth.begin() + kHalf, bench.exposed.truth.end());
    for (std::uint64_t i = 0; i < kOps; ++i) {
      const std::uint64_t bytes = i == 0 ? 100 : kMiB;
      REQUIRE(bench.put(2 * i, {i * kMiB, i * kMiB, bytes}).ok());
      REQUIRE(bench.get(2 * i + 1, {kHalf + i * kMiB, kHalf + i * kMiB, bytes}).ok());
    }
    // The target stands still in whatever moment.
    std::vector<Completion> ended;
    std::array<Completion, 16> some;
    const auto poll = [&](std::uint64_t times) {
      for (std::uint64_t i = 0; i < times; ++i) {
        const std::size_t count = bench.initiator->poll(some);
        ended.insert(ended.end(), some.begin(), some.begin() + static_cast<std::ptrdiff_t>(count));
      }
    };
    poll(round * round);
    rig->stop(bench.target);
    poll(200);
    const auto given = bench.initiator->give_back([](OpId) { return true; });
    CHECK(given.size() + ended.size() == 2 * kOps);
    cut += given.size();
    poll(1);  // what had ended before
    bench.initiator->unregister_memory(bench.local);
    fill(bench.memory(), 5);
    const std::vector<std::byte> after(bench.memory().begin(), bench.memory().end());
    rig->resume(bench.target);
    if (ended.size() < 2 * kOps) {
      const auto rest = collect(*rig, *bench.initiator, 2 * kOps - ended.size());
      ended.insert(ended.end(), rest.begin(), rest.end());
    }
    for (const Completion& one : ended) {
      CHECK((one.code == Errc::kOk || one.code == Errc::kCanceled));
      if (one.code != Errc::kOk || one.op.value() % 2 != 0) continue;
      const std::uint64_t i = one.op.value() / 2;
      const std::uint64_t bytes = i == 0 ? 100 : kMiB;
      CHECK(std::memcmp(bench.exposed.truth.data() + i * kMiB, put.data() + i * kMiB, bytes) == 0);
    }
    CHECK(std::memcmp(bench.memory().data(), after.data(), after.size()) == 0);
    bench.local = *bench.initiator->register_memory(bench.memory());
    REQUIRE(bench.get(100, {kHalf, kHalf, kHalf}).ok());
    CHECK(collect(*rig, *bench.initiator, 1)[0].code == Errc::kOk);
    CHECK(std::memcmp(bench.memory().data() + kHalf, got.data(), kHalf) == 0);
  }
  CHECK(cut > 0);
}

/// Puts 48 MiB and takes the right back while they are under way. @return whether that cut any.
bool revoke_under_puts(const std::string& driver) {
  const std::unique_ptr<Rig> rig = make_rig(driver);
  // More than is in flight at a time: emulated devices carry puts out while they are posted.
  constexpr std::uint64_t kOps = 48;
  Bench bench(*rig, kOps * kMiB, kOps * kMiB);
  fill(bench.memory(), 31);
  for (std::uint64_t i = 0; i < kOps; ++i) {
    REQUIRE(bench.put(i, {i * kMiB, i * kMiB, kMiB}, 5s).ok());
  }
  Completion some[4];
  std::size_t ended = bench.initiator->poll(some);
  const Rig::Truth truth = rig->revoke(bench.exposed);
  const bool kept = truth == Rig::Truth::kKept;
  const std::uint64_t before = kept ? checksum64(bench.exposed.truth) : 0;
  bool cut = false;
  for (const Completion& completion : collect(*rig, *bench.initiator, kOps - ended)) {
    INFO(errc_name(completion.code));
    REQUIRE((completion.code == Errc::kOk || completion.code == Errc::kPermissionDenied ||
             completion.code == Errc::kUnavailable));
    cut = cut || completion.code != Errc::kOk;
  }
  if (kept) REQUIRE(checksum64(bench.exposed.truth) == before);
  REQUIRE(rig->alive(bench.target));
  check_serves(*rig, bench.target);
  return cut;
}

TEST_CASE("transport: a revocation in mid-transfer ends it and leaves the memory alone") {
  const std::string driver = GENERATE(from_range(drivers({"local", "ofi", "ucx", "sim"})));
  INFO("driver " << driver);
  // A machine that runs other programs may get to the revocation when all puts have ended.
  int tries = 0;
  while (!revoke_under_puts(driver)) REQUIRE(++tries < 20);
}

TEST_CASE("transport: with the target stopped local and devices go on, others end by deadline",
          "[time]") {
  HO_ANY_DRIVER();
  constexpr std::uint64_t kOps = 8;
  Bench bench(*rig, kOps * kMiB, kOps * kMiB);
  fill(bench.exposed.truth, 41);
  rig->stop(bench.target);
  const TimePoint start = rig->clock().now();
  const bool goes_on = driver.starts_with("local") || rig->served_by_device();
  const Duration first = goes_on ? Duration(10s) : Duration(300ms);
  for (std::uint64_t i = 0; i < kOps; ++i) {
    REQUIRE(bench.get(i, {i * kMiB, i * kMiB, kMiB}, i == 0 ? first : Duration(10s)).ok());
  }
  const auto done = collect(*rig, *bench.initiator, kOps, within(5s));
  const Duration took = rig->clock().now() - start;
  rig->resume(bench.target);
  if (goes_on) {
    for (const Completion& completion : done) REQUIRE(completion.code == Errc::kOk);
    REQUIRE(std::memcmp(bench.memory().data(), bench.exposed.truth.data(), kOps * kMiB) == 0);
    return;
  }
  REQUIRE(took < within(2s));
  for (const Completion& completion : done) {
    INFO("operation " << completion.op.value() << " " << errc_name(completion.code));
    REQUIRE(completion.code == (completion.op == OpId(0) ? Errc::kDeadline : Errc::kUnavailable));
  }
  const auto after = bench.get(99, {0, 0, 64});
  REQUIRE_FALSE(after.ok());
  REQUIRE(after.error().code() == Errc::kUnavailable);
  check_serves(*rig, bench.target);
}

TEST_CASE("transport: connecting to a stopped target ends by the deadline", "[time]") {
  const std::string driver = GENERATE(from_range(drivers({"tcp", "ofi", "ucx", "sim"})));
  INFO("driver " << driver);
  const std::unique_ptr<Rig> rig = make_rig(driver);
  const std::size_t target = rig->add_target();
  rig->stop(target);
  const auto initiator = rig->make_initiator(0);
  const TimePoint start = rig->clock().now();
  const auto connected = initiator->connect(rig->peer(target), in(*rig, 300ms));
  REQUIRE_FALSE(connected.ok());
  REQUIRE(connected.error().code() == Errc::kDeadline);
  // An emulated machine takes seconds to look for devices, the first time that libfabric is used.
  REQUIRE(rig->clock().now() - start < within(rig->served_by_device() ? 5s : 1s));
  rig->resume(target);
  check_serves(*rig, target);
}

TEST_CASE("transport: a killed target ends its operations within 2 s", "[time]") {
  HO_ANY_DRIVER();
  constexpr std::uint64_t kOps = 16;
  Bench bench(*rig, kOps * kMiB, kOps * kMiB);
  for (std::uint64_t i = 0; i < kOps; ++i) {
    REQUIRE(bench.get(i, {i * kMiB, i * kMiB, kMiB}).ok());
  }
  Completion some[1];
  const std::size_t ended = bench.initiator->poll(some);
  rig->kill(bench.target);
  const TimePoint start = rig->clock().now();
  // The death of a local peer is seen by the owner of the control connection.
  if (driver.starts_with("local")) bench.initiator->close_peer(bench.peer);
  const auto done = collect(*rig, *bench.initiator, kOps - ended, within(5s));
  REQUIRE(rig->clock().now() - start < within(2s));
  for (const Completion& completion : done) {
    // An operation that had ended before the death may come out afterwards.
    INFO(errc_name(completion.code));
    REQUIRE((completion.code == Errc::kOk || completion.code == Errc::kUnavailable));
  }
  // A device goes on while the process dies, and may have been through.
  if (!rig->served_by_device()) REQUIRE(done.back().code == Errc::kUnavailable);
  const auto later = bench.get(99, {0, 0, 8 * kKiB}, 5s);
  const Errc code = later ? collect(*rig, *bench.initiator, 1)[0].code : later.error().code();
  REQUIRE(code == Errc::kUnavailable);
  if (!driver.starts_with("local")) {
    const auto again = bench.initiator->connect(rig->peer(bench.target), in(*rig, 1s));
    REQUIRE_FALSE(again.ok());
    // Over RDMA, and often over libfabric, nothing says that a process is gone.
    const bool silent = rig->served_by_device() || driver == "ofi";
    if (!silent) REQUIRE(again.error().code() == Errc::kUnavailable);
  }
}

TEST_CASE("transport: a target killed while idle is seen by the next operation", "[time]") {
  const std::string driver = GENERATE(from_range(drivers({"tcp", "ofi", "ucx", "sim"})));
  INFO("driver " << driver);
  const std::unique_ptr<Rig> rig = make_rig(driver);
  Bench bench(*rig, kMiB, kMiB);
  rig->kill(bench.target);
  const TimePoint start = rig->clock().now();
  const auto late = bench.get(1, {0, 0, 64});
  const Errc code = late ? collect(*rig, *bench.initiator, 1)[0].code : late.error().code();
  REQUIRE(code == Errc::kUnavailable);
  REQUIRE(rig->clock().now() - start < within(2s));
}

TEST_CASE("transport: closing a peer ends its operations at once and no other peer's") {
  HO_ANY_DRIVER();
  constexpr std::uint64_t kOps = 8;
  const std::size_t other = rig->add_target();  // forks, which UCX does not survive once in use
  Bench bench(*rig, kOps * kMiB, 2 * kOps * kMiB);
  const Exposed exposed = rig->expose(other, kOps * kMiB, Rights::kReadWrite);
  fill(exposed.truth, 51);
  const auto peer = bench.initiator->connect(rig->peer(other), in(*rig, 20s));
  REQUIRE(peer.ok());
  const auto region = bench.initiator->attach(*peer, rig->grant(exposed));
  REQUIRE(region.ok());
  for (std::uint64_t i = 0; i < kOps; ++i) {
    REQUIRE(bench.get(i, {i * kMiB, i * kMiB, kMiB}).ok());
    REQUIRE(bench.initiator
                ->submit(transport::MemoryOp{transport::Direction::kGet, OpId(100 + i),
                                             bench.memory().subspan((kOps + i) * kMiB, kMiB),
                                             bench.local, *region, i * kMiB, in(*rig, 10s)})
                .ok());
  }
  bench.initiator->close_peer(bench.peer);
  bench.initiator->close_peer(bench.peer);
  // The closed peer's buffers are ours again as soon as its completions are out.
  for (const Completion& completion : collect(*rig, *bench.initiator, 2 * kOps)) {
    INFO("operation " << completion.op.value());
    if (completion.op.value() >= 100) {
      REQUIRE(completion.code == Errc::kOk);
    } else {
      REQUIRE((completion.code == Errc::kUnavailable || completion.code == Errc::kOk));
    }
  }
  REQUIRE(std::memcmp(bench.memory().data() + kOps * kMiB, exposed.truth.data(), kOps * kMiB) == 0);
  const auto after = bench.get(1, {0, 0, 8});
  REQUIRE_FALSE(after.ok());
  REQUIRE(after.error().code() == Errc::kUnavailable);
  bench.initiator->detach(bench.region);
  check_serves(*rig, bench.target);
}

struct Victim {
  pid_t pid = -1;
  UniqueFd moving;  ///< a byte comes once its first transfer has ended, and more are in flight
};

/// A child that stands still until it gets SIGCONT, and then keeps transfers in flight until it is
/// killed. All are forked before this process has used the driver, which may not survive it.
Victim fork_victim(Rig& rig, std::size_t target, const Exposed& exposed, bool writes) {
  transport::RegionGrant grant = rig.grant(exposed);
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  UniqueFd ours(ends[0]);
  const UniqueFd theirs(ends[1]);
  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid > 0) {
    int status = 0;
    REQUIRE(::waitpid(pid, &status, WUNTRACED) == pid);
    REQUIRE(WIFSTOPPED(status));
    return Victim{pid, std::move(ours)};
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::raise(SIGSTOP);
  const SteadyClock clock;
  const auto initiator = rig.make_initiator(0);
  const TimePoint deadline = clock.now() + kVictimLife;
  const auto peer = initiator->connect(rig.peer(target), deadline);
  if (!peer) ::_exit(1);
  const auto region = initiator->attach(*peer, std::move(grant));
  if (!region) ::_exit(2);
  constexpr std::uint64_t kOps = 8;
  std::vector<std::byte> memory(kOps * kMiB);
  const auto local = initiator->register_memory(memory);
  if (!local) ::_exit(3);
  const auto start = [&](std::uint64_t i) {
    const auto piece = std::span<std::byte>(memory).subspan(i * kMiB, kMiB);
    const auto direction = writes ? transport::Direction::kPut : transport::Direction::kGet;
    return initiator->submit({direction, OpId(i), piece, *local, *region, i * kMiB, deadline});
  };
  for (std::uint64_t i = 0; i < kOps; ++i) (void)start(i);
  bool told = false;
  while (clock.now() < deadline) {
    Completion some[8];
    const std::size_t got = initiator->poll(some);
    for (std::size_t i = 0; i < got; ++i) {
      if (some[i].code != Errc::kOk || !start(some[i].op.value())) ::_exit(4);
      if (!std::exchange(told, true) && ::write(theirs.get(), "m", 1) != 1) ::_exit(5);
    }
  }
  ::_exit(6);
}

TEST_CASE(
    "transport: initiators killed in mid-transfer leave the target serving, again and again") {
  const std::string driver = GENERATE(from_range(drivers({"local", "tcp", "ofi", "ucx"})));
  INFO("driver " << driver);
  const std::unique_ptr<Rig> rig = make_rig(driver);
  const std::size_t target = rig->add_target();
  const Exposed hit = rig->expose(target, 8 * kMiB, Rights::kReadWrite);
  const Exposed spared = rig->expose(target, kMiB, Rights::kReadWrite);
  fill(spared.truth, 61);
  const std::uint64_t before = checksum64(spared.truth);
  Prng prng(62);
  // In an emulated machine libfabric takes seconds to look for devices, in each child anew.
  const int rounds = driver == "ofi" && rig->served_by_device() ? 8 : 24;
  std::vector<Victim> victims;
  for (int round = 0; round < rounds; ++round) {
    victims.push_back(fork_victim(*rig, target, hit, round % 2 == 0));
  }
  for (int round = 0; round < rounds; ++round) {
    INFO("round " << round);
    const Victim victim = std::move(victims[static_cast<std::size_t>(round)]);
    REQUIRE(::kill(victim.pid, SIGCONT) == 0);
    char word = 0;
    const bool moving = ::read(victim.moving.get(), &word, 1) == 1;  // or the end: it exited
    std::this_thread::sleep_for(std::chrono::microseconds(prng.below(20'000)));
    ::kill(victim.pid, SIGKILL);
    int status = 0;
    REQUIRE(::waitpid(victim.pid, &status, 0) == victim.pid);
    INFO("exited with " << (WIFEXITED(status) ? WEXITSTATUS(status) : -1));
    REQUIRE(moving);
    REQUIRE(WIFSIGNALED(status));
    REQUIRE(rig->alive(target));
    if (round % 4 == 3) check_serves(*rig, target);
    REQUIRE(checksum64(spared.truth) == before);
  }
}

}  // namespace
}  // namespace ho::test
