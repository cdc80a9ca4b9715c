// Special to the local driver: descriptors and copies.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <ctime>
#include <memory>
#include <thread>
#include <vector>

#include "common/base/prng.hpp"
#include "common/system/memory_guard.hpp"
#include "common/system/unique_fd.hpp"
#include "common/transport/local/copy.hpp"
#include "common/transport/local/copy_team.hpp"
#include "common/transport/local/local_transport.hpp"
#include "tests/conformance/transport/rig.hpp"
#include "tools/bench/target_process.hpp"

namespace ho::test {
namespace {

using namespace std::chrono_literals;

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

TEST_CASE("local: every length and alignment copies right, plain or streaming") {
  std::vector<std::byte> from(4096 + 256);
  fill(from, 81);
  std::vector<std::byte> to(from.size());
  std::vector<transport::Copy> copies = transport::streaming_copies();
  copies.push_back([](std::byte* target, const std::byte* source, std::size_t length_bytes) {
    transport::copy_piece(target, source, length_bytes, transport::streaming_bytes_min());
  });
  for (const transport::Copy copy : copies) {
    for (std::size_t length = 0; length <= 1024; length += 1 + length / 40) {
      for (std::size_t shift = 0; shift < 64; shift += 7) {
        std::memset(to.data(), 0x77, to.size());
        copy(to.data() + 64 + shift, from.data() + 13, length);
        REQUIRE(std::memcmp(to.data() + 64 + shift, from.data() + 13, length) == 0);
        REQUIRE(to[63 + shift] == std::byte{0x77});
        REQUIRE(to[64 + shift + length] == std::byte{0x77});
      }
    }
  }
}

TEST_CASE("local: another way of copying is used only where it is clearly faster") {
  const auto of = [](const std::vector<std::uint64_t>& times_ns) {
    return transport::preferred(times_ns);
  };
  CHECK(of({70'000}) == 0);
  CHECK(of({70'000, 72'800}) == 0);
  CHECK(of({70'000, 68'600}) == 0);  // as far as noise goes
  CHECK(of({70'000, 66'500}) == 1);
  CHECK(of({70'000, 66'500, 65'800}) == 1);
  CHECK(of({70'000, 66'500, 60'000}) == 2);
}

/// Memory of this process's that CopyTeam takes for a segment.
std::unique_ptr<bench::Segment> segment_of(std::uint64_t bytes) {
  auto made = bench::Segment::create(bytes);
  REQUIRE(made.ok());
  REQUIRE(install_memory_guard().ok());
  return std::move(*made);
}

TEST_CASE("local: threads that share a copy leave no byte out, awake or asleep") {
  const auto segment = segment_of(4 * kMiB);
  std::vector<std::byte> from(4 * kMiB);
  fill(from, 83);
  for (const std::uint32_t helpers : {1U, 3U}) {
    transport::CopyTeam team(helpers);
    Prng prng(helpers);
    for (int round = 0; round < 200; ++round) {
      if (round % 20 == 0) std::this_thread::sleep_for(2ms);  // they fall asleep
      const std::uint64_t length = 1 + prng.below(3 * kMiB);
      const std::uint64_t at = prng.below(from.size() - length);
      std::byte* const to = segment->bytes().data();
      std::memset(to, 0x77, length + 1);
      REQUIRE(team.copy({to, from.data() + at, length, length, segment->bytes()}));
      REQUIRE(std::memcmp(to, from.data() + at, length) == 0);
      REQUIRE(to[length] == std::byte{0x77});
    }
  }
}

TEST_CASE("local: threads that share copies cost nothing while there is nothing to copy") {
  const auto segment = segment_of(kMiB);
  const std::vector<std::byte> from(kMiB);
  transport::CopyTeam team(3);
  REQUIRE(team.copy({segment->bytes().data(), from.data(), kMiB, kMiB, segment->bytes()}));
  std::this_thread::sleep_for(50ms);
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(300ms);
  CHECK(std::clock() - before < CLOCKS_PER_SEC / 10);  // a third of one that does not sleep
}

TEST_CASE("local: a segment that is cut short under threads that share a copy is noticed") {
  const auto segment = segment_of(4 * kMiB);
  std::vector<std::byte> into(4 * kMiB);
  transport::CopyTeam team(3);
  const UniqueFd file = segment->duplicate();
  const transport::CopyTeam::Piece piece{into.data(), segment->bytes().data(), 4 * kMiB, 4 * kMiB,
                                         segment->bytes()};
  REQUIRE(team.copy(piece));
  REQUIRE(::ftruncate(file.get(), static_cast<off_t>(2 * kMiB)) == 0);
  for (int round = 0; round < 20; ++round) REQUIRE_FALSE(team.copy(piece));
  transport::CopyTeam::Piece rest = piece;
  rest.length_bytes = 2 * kMiB;
  CHECK(team.copy(rest));
}

TEST_CASE("local: copies are made by one thread to four") {
  const SteadyClock clock;
  transport::LocalOptions options;
  for (const std::uint32_t threads : {0U, 5U}) {
    options.copy_threads = threads;
    CHECK(transport::make_local_transport(options, clock).error().code() == Errc::kInvalidArgument);
  }
  options.copy_threads = 4;
  CHECK(transport::make_local_transport(options, clock).ok());
}

TEST_CASE("local: a target that was shut takes nothing new in, and gives back what it has") {
  const auto segment = segment_of(64 * kKiB);
  const auto target = transport::make_local_target();
  REQUIRE(target.ok());
  const transport::ExposeRequest request{segment->bytes(), transport::Rights::kRead, segment->fd(),
                                         SessionId(1)};
  const auto exposed = (*target)->expose(request);
  REQUIRE(exposed.ok());
  (*target)->shut();
  CHECK((*target)->admit({SessionId(2), ""}).error().code() == Errc::kUnavailable);
  CHECK((*target)->expose(request).error().code() == Errc::kUnavailable);
  CHECK((*target)->revoke(exposed->id).ok());
}

}  // namespace
}  // namespace ho::test
