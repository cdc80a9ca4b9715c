// What is special to the local driver: descriptors and SIGBUS.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>

#include "common/transport/local/copy.hpp"
#include "common/transport/local/fault_guard.hpp"
#include "common/transport/local/local_transport.hpp"
#include "tests/conformance/transport/rig.hpp"
#include "tools/bench/target_process.hpp"

namespace ho::test {
namespace {

using namespace std::chrono_literals;

/// How a child process ended.
struct End {
  int signal = 0;  ///< 0: it exited
  int status = 0;
  bool operator==(const End&) const = default;
};

/// Runs `body` in a child.
template <typename Body>
End end_of(const Body& body) {
  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    body();
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  if (WIFSIGNALED(status)) return End{WTERMSIG(status), 0};
  return End{0, WEXITSTATUS(status)};
}

/// A read of a page that is no more.
void touch_truncated() {
  auto segment = bench::Segment::create(4096);
  if (!segment || ::ftruncate((*segment)->fd(), 0) != 0) ::_exit(3);
  const volatile std::byte* page = (*segment)->bytes().data();
  (void)*page;
}

/// Installs the guard on top of `earlier`; the process must not have it yet.
void install_on(void (*earlier)(int)) {
  ::signal(SIGBUS, earlier);
  if (!transport::install_fault_guard()) ::_exit(4);
  struct sigaction now {};
  if (::sigaction(SIGBUS, nullptr, &now) != 0 || now.sa_handler == earlier) ::_exit(5);
}

// First in this file: later cases install the guard in this process, and children inherit it.
TEST_CASE("local: a SIGBUS that is not the driver's ends the process, or goes to who was first") {
  const End killed = end_of([] {
    install_on(SIG_DFL);
    touch_truncated();
  });
  REQUIRE(killed == End{SIGBUS, 0});
  const End handled = end_of([] {
    install_on([](int) { ::_exit(42); });
    touch_truncated();
  });
  REQUIRE(handled == End{0, 42});
}

TEST_CASE("local: a grant without descriptor, or longer than its segment, is refused") {
  const SteadyClock clock;
  auto initiator = transport::make_local_transport({}, clock);
  REQUIRE(initiator.ok());
  const auto peer = (*initiator)->connect({NodeId(1), "local"}, clock.now() + 1s);
  REQUIRE(peer.ok());
  auto segment = bench::Segment::create(64 * kKiB);
  REQUIRE(segment.ok());
  transport::RegionGrant bare;
  bare.length_bytes = 4096;
  const auto no_descriptor = (*initiator)->attach(*peer, std::move(bare));
  REQUIRE_FALSE(no_descriptor.ok());
  REQUIRE(no_descriptor.error().code() == Errc::kInvalidArgument);
  transport::RegionGrant longer;
  longer.fd = (*segment)->duplicate();
  longer.length_bytes = 64 * kKiB + 1;
  const auto too_long = (*initiator)->attach(*peer, std::move(longer));
  REQUIRE_FALSE(too_long.ok());
  REQUIRE(too_long.error().code() == Errc::kPermissionDenied);
}

TEST_CASE("local: a copy survives its segment being truncated, again and again") {
  REQUIRE(transport::install_fault_guard().ok());
  std::vector<std::byte> memory(kMiB);
  for (int round = 0; round < 50; ++round) {
    auto segment = bench::Segment::create(kMiB);
    REQUIRE(segment.ok());
    const std::span<std::byte> mapped = (*segment)->bytes();
    const std::uint64_t kept = static_cast<std::uint64_t>(round) * 16 * kKiB;
    REQUIRE(::ftruncate((*segment)->fd(), static_cast<off_t>(kept)) == 0);
    const auto get = transport::guarded_copy(
        {memory.data(), mapped.data(), mapped.size(), mapped.size(), mapped});
    REQUIRE(get == transport::CopyOutcome::kSegmentGone);
    const auto put = transport::guarded_copy(
        {mapped.data(), memory.data(), mapped.size(), mapped.size(), mapped});
    REQUIRE(put == transport::CopyOutcome::kSegmentGone);
    if (kept == 0) continue;
    const auto good = transport::guarded_copy({memory.data(), mapped.data(), kept, kept, mapped});
    REQUIRE(good == transport::CopyOutcome::kCopied);
  }
}

TEST_CASE("local: every length and alignment copies right, plain or streaming") {
  std::vector<std::byte> from(4096 + 256);
  fill(from, 81);
  std::vector<std::byte> to(from.size());
  for (std::size_t length = 0; length <= 1024; length += 1 + length / 40) {
    for (std::size_t shift = 0; shift < 64; shift += 7) {
      std::memset(to.data(), 0x77, to.size());
      transport::copy_streaming(to.data() + 64 + shift, from.data() + 13, length);
      REQUIRE(std::memcmp(to.data() + 64 + shift, from.data() + 13, length) == 0);
      REQUIRE(to[63 + shift] == std::byte{0x77});
      REQUIRE(to[64 + shift + length] == std::byte{0x77});
    }
  }
}

}  // namespace
}  // namespace ho::test
