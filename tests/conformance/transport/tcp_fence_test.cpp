// The promise that fences make: once one is answered, no byte of the old rail arrives. HO_SEEDS=N
// in the environment gives N times as many rounds.
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/prng.hpp"
#include "common/base/units.hpp"
#include "common/transport/tcp/wire.hpp"
#include "tests/conformance/transport/tcp_peer.hpp"
#include "tests/support/seeds.hpp"

namespace ho::test {
namespace {

using transport::LaneKind;
using transport::Rights;
using transport::tcp::OpCode;
using transport::tcp::SegmentKey;
using transport::tcp::Status;

constexpr std::size_t kPutBytes = 256 * kKiB;

/// What one round's put carries: its round's stamp in every eight bytes.
std::string stamped(std::uint64_t round) {
  std::string text(kPutBytes, '\0');
  for (std::size_t at = 0; at < text.size(); at += sizeof round) {
    std::memcpy(text.data() + at, &round, sizeof round);
  }
  return text;
}

/// Sends as much as the kernel takes at once. @return how much; 0 after an error too.
std::size_t push(const TcpPeer& peer, std::string_view text) {
  const ssize_t sent = ::send(peer.fd(), text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  return sent > 0 ? static_cast<std::size_t>(sent) : 0;
}

TEST_CASE("tcp fence: of a put that is cut anywhere no byte arrives after the answer") {
  const std::uint64_t rounds = seed_count(200);
  std::vector<std::byte> memory(kPutBytes);
  TcpTargetHere target;
  const SegmentKey key = target.expose(memory, Rights::kReadWrite);
  Prng prng(91);
  std::uint64_t caught = 0;
  std::uint32_t generation = 1;
  auto old = std::make_unique<TcpPeer>(target);
  REQUIRE(old->greet(kSession, generation, 0, LaneKind::kLarge));
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    // A put of the old rail: the target has read a part of it, the kernel holds another part.
    const std::string put =
        bytes_of(TcpPeer::request(OpCode::kPut, key, 0, kPutBytes)) + stamped(2 * round);
    const std::size_t most = prng.below(put.size());
    std::size_t sent = 0;
    while (sent < most) {
      sent += push(*old, std::string_view(put).substr(sent, 1 + prng.below(most - sent)));
      for (std::uint64_t i = prng.below(3); i > 0; --i) (void)target->progress();
    }
    REQUIRE(target->fence(kSession.session, {0, generation}).ok());
    std::uint64_t first = 0;
    std::memcpy(&first, memory.data(), sizeof first);
    caught += first == 2 * round;

    // The same put on a new rail, while the rest of the old one is sent.
    auto fresh = std::make_unique<TcpPeer>(target);
    REQUIRE(fresh->greet(kSession, ++generation, 0, LaneKind::kLarge));
    (void)push(*old, std::string_view(put).substr(sent));
    const std::string again = stamped(2 * round + 1);
    REQUIRE(fresh->send(bytes_of(TcpPeer::request(OpCode::kPut, key, 0, kPutBytes)) + again));
    const auto answer = fresh->answer();
    REQUIRE(answer);
    CHECK(answer->status == Status::kOk);
    (void)push(*old, std::string_view(put).substr(sent));
    for (int i = 0; i < 8; ++i) (void)target->progress();
    REQUIRE(std::memcmp(memory.data(), again.data(), kPutBytes) == 0);
    old = std::move(fresh);
  }
  // The rounds prove nothing unless many puts are caught half-way.
  CHECK(caught > rounds / 2);
  std::printf("%llu puts, %llu caught half-way\n", static_cast<unsigned long long>(rounds),
              static_cast<unsigned long long>(caught));
}

}  // namespace
}  // namespace ho::test
