// What is special to the local driver: descriptors and copies.
#include <catch2/catch.hpp>
#include <cstring>

#include "common/transport/local/copy.hpp"
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

}  // namespace
}  // namespace ho::test
