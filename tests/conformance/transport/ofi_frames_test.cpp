// The ofi driver's target against initiators that speak libfabric's TCP protocol by hand, and lie
// in it: whoever has a session has keys that are good, and a raw socket.
#include <arpa/inet.h>
#include <poll.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "common/base/checksum.hpp"
#include "common/base/prng.hpp"
#include "common/base/unique_fd.hpp"
#include "common/transport/ofi/wire.hpp"
#include "tests/conformance/transport/raw_peer.hpp"
#include "tests/conformance/transport/rig.hpp"

namespace ho::test {
namespace {

using namespace std::chrono_literals;
using transport::Rights;

// Source: as Frame.
enum : std::uint8_t { kMessage = 0, kTagged = 1, kAnswer = 3 };
constexpr std::uint16_t kWithData = 1;
constexpr std::uint16_t kCommitted = 8;

/// A target with a region of the liar's own, others' regions around it in the target's address
/// space, and somebody whose connection is to live on.
struct Scene {
  Scene() : rig(make_rig("ofi")), other(*rig, kMiB, 4096) {
    for (int i = 0; i < 2; ++i) around.push_back(exposed());
    own = exposed();
    for (int i = 0; i < 2; ++i) around.push_back(exposed());
    around.push_back(other.exposed);
    for (Exposed& region : around) {
      fill(region.truth, 7);
      sums.push_back(checksum64(region.truth));
    }
    const auto decoded = transport::decode_key(own.key);
    REQUIRE(decoded.ok());
    key = *decoded;
  }
  Exposed exposed() { return rig->expose(other.target, kMiB, Rights::kReadWrite); }
  [[nodiscard]] std::string address() const { return rig->address(other.target); }
  [[nodiscard]] Range range(std::uint64_t offset, std::uint64_t length_bytes) const {
    return {key.base + offset, length_bytes, key.key};
  }
  /// What must hold whatever was sent.
  void check() {
    REQUIRE(rig->alive(other.target));
    for (std::size_t i = 0; i < around.size(); ++i) {
      INFO("region " << i);
      REQUIRE(checksum64(around[i].truth) == sums[i]);
    }
    REQUIRE(other.get(1, {0, 0, 4096}).ok());
    REQUIRE(collect(*rig, *other.initiator, 1)[0].code == Errc::kOk);
    REQUIRE(std::memcmp(other.memory().data(), other.exposed.truth.data(), 4096) == 0);
  }

  std::unique_ptr<Rig> rig;
  Bench other;
  Exposed own;
  transport::RemoteKey key;
  std::vector<Exposed> around;
  std::vector<std::uint64_t> sums;
};

/// Sends it on a connection that has moved bytes before; the connection must end, and nothing else.
void check_costs_its_connection(Scene& scene, const Bytes& lie) {
  RawPeer peer(scene.address());
  REQUIRE(peer.accepted());
  Bytes good;
  append(good, read_of(scene.range(0, 64)));
  peer.send(good);
  REQUIRE(peer.receive(16 + 64).size() == 16 + 64);
  peer.send(lie);
  CHECK(peer.ended());
  scene.check();
}

TEST_CASE("ofi: what is written and read by hand arrives as by libfabric") {
  Scene scene;
  RawPeer peer(scene.address());
  REQUIRE(peer.accepted());
  Bytes stream;
  append(stream, write_of(scene.range(100, 5000)));
  Bytes payload(5000);
  fill(payload, 3);
  stream.insert(stream.end(), payload.begin(), payload.end());
  append(stream, read_of(scene.range(100, 5000)));
  // In pieces that cut headers anywhere.
  for (std::size_t at = 0; at < stream.size(); at += 7) {
    peer.send({stream.begin() + static_cast<std::ptrdiff_t>(at),
               stream.begin() + static_cast<std::ptrdiff_t>(std::min(at + 7, stream.size()))});
  }
  const Bytes answer = peer.receive(16 + 16 + 5000);  // that it was delivered, and what it was
  REQUIRE(answer.size() == 16 + 16 + 5000);
  CHECK(std::memcmp(answer.data() + 32, payload.data(), payload.size()) == 0);
  CHECK(std::memcmp(scene.own.truth.data() + 100, payload.data(), payload.size()) == 0);
  scene.check();
}

TEST_CASE("ofi: an offset and a length whose sum overflows reach nothing, written or read") {
  Scene scene;
  for (const std::uint64_t offset :
       {std::uint64_t{kMiB}, std::uint64_t{2 * kMiB}, std::uint64_t{kMiB + 1}, std::uint64_t{1}}) {
    for (const std::uint64_t beyond : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{4096}}) {
      if (beyond > offset) continue;
      for (const std::size_t sent : {std::size_t{0}, std::size_t{64}, std::size_t{100'000}}) {
        INFO("offset " << offset << " + " << beyond << ", " << sent << " bytes sent");
        const Range range = scene.range(offset, 0 - offset + beyond);
        Bytes lie;
        Frame frame = write_of(range);
        frame.whole_bytes = sizeof frame + sent;
        append(lie, frame);
        lie.resize(lie.size() + sent, std::byte{0xEE});
        check_costs_its_connection(scene, lie);
        lie.clear();
        append(lie, write_of(range));  // a size that fits the length
        lie.resize(lie.size() + sent, std::byte{0xEE});
        check_costs_its_connection(scene, lie);
      }
      Bytes lie;
      append(lie, read_of(scene.range(offset, 0 - offset + beyond)));
      check_costs_its_connection(scene, lie);
    }
  }
}

TEST_CASE("ofi: more ranges than a header holds, or none, cost the connection") {
  Scene scene;
  for (const std::uint8_t op : {kWrite, kRead}) {
    for (const int ranges : {0, 2, 4, 5, 8, 255}) {
      INFO((op == kWrite ? "write" : "read") << " of " << ranges << " ranges");
      Frame frame = write_of(scene.range(0, 64));
      frame.op = op;
      frame.ranges = static_cast<std::uint8_t>(ranges);
      Bytes lie;
      append(lie, frame);
      for (int more = 1; more < std::min(ranges, 4); ++more) append(lie, frame.range);
      lie[6] = static_cast<std::byte>(lie.size());
      const std::uint64_t whole = lie.size() + (op == kWrite ? 8192U : 0U);
      std::memcpy(lie.data() + 8, &whole, sizeof whole);
      if (op == kWrite) lie.resize(whole, std::byte{0xEE});
      check_costs_its_connection(scene, lie);
    }
  }
}

TEST_CASE("ofi: frames that only an initiator may get, and those of no kind, cost the connection") {
  Scene scene;
  for (int op = 0; op < 256; op = op < 8 ? op + 1 : op * 2 + 1) {
    for (const std::uint8_t data :
         {std::uint8_t{0}, std::uint8_t{2}}) {  // 2: acknowledges a put that nobody asked for
      if (op == kRead || op == kWrite) continue;
      for (const std::uint8_t header : {std::uint8_t{16}, std::uint8_t{40}}) {
        INFO("op " << op << " data " << int{data} << " header " << int{header});
        Frame frame = write_of(scene.range(0, 64));
        frame.op = static_cast<std::uint8_t>(op);
        frame.op_data = data;
        frame.header_bytes = header;
        frame.ranges = 0;
        frame.whole_bytes = header;
        Bytes lie;
        append(lie, frame);
        lie.resize(header);
        check_costs_its_connection(scene, lie);
      }
    }
  }
}

TEST_CASE("ofi: headers of another length, frames shorter than these, unknown flags are refused") {
  Scene scene;
  for (const int header : {0, 1, 15, 16, 17, 39, 41, 48, 120, 121, 255}) {
    for (const std::uint64_t whole :
         {std::uint64_t{0}, std::uint64_t{15}, std::uint64_t{104}, ~std::uint64_t{0}}) {
      INFO("header " << header << " whole " << whole);
      Frame frame = write_of(scene.range(0, 64));
      frame.header_bytes = static_cast<std::uint8_t>(header);
      frame.whole_bytes = whole;
      Bytes lie;
      append(lie, frame);
      lie.resize(4096, std::byte{0xEE});
      check_costs_its_connection(scene, lie);
    }
  }
  for (const std::uint16_t flags :
       {kWithData, kCommitted, std::uint16_t{0x80}, std::uint16_t{0xFFFF}}) {
    INFO("flags " << flags);
    Frame frame = write_of(scene.range(0, 64));
    frame.flags = flags;
    Bytes lie;
    append(lie, frame);
    lie.resize(lie.size() + 64, std::byte{0xEE});
    check_costs_its_connection(scene, lie);
  }
}

TEST_CASE("ofi: a hello in another byte order, or that is none, is refused") {
  Scene scene;
  std::vector<Hello> lies(5);
  lies[0].byte_order = std::uint64_t{1} << 56U;
  lies[1].version = 2;
  lies[2].type = 1;
  lies[3].body_bytes = htons(257);
  lies[4].body_bytes = htons(0);
  for (const Hello& lie : lies) {
    RawPeer peer(scene.address(), lie);
    CHECK(peer.ended());
    scene.check();
  }
}

TEST_CASE("ofi: of those who ask for nothing the oldest give way, and nobody else does") {
  constexpr std::size_t kSilentMax = 256;
  constexpr std::size_t kSpeechless = 200;
  constexpr std::size_t kGreeted = 100;
  constexpr std::size_t kCut = kSpeechless + kGreeted - kSilentMax;
  Scene scene;
  std::vector<UniqueFd> speechless;
  std::vector<std::unique_ptr<RawPeer>> greeted;
  while (speechless.size() < kSpeechless) speechless.push_back(call(scene.address()));
  while (greeted.size() < kGreeted) {
    greeted.push_back(std::make_unique<RawPeer>(scene.address()));
    REQUIRE(greeted.back()->accepted());  // and so all before it were
  }
  const auto cut = [](const UniqueFd& one, int wait_ms) {
    pollfd waits{one.get(), POLLIN, 0};
    return ::poll(&waits, 1, wait_ms) > 0;
  };
  for (std::size_t i = 0; i < kSpeechless; ++i) {
    INFO("connection " << i);
    CHECK(cut(speechless[i], i < kCut ? 5000 : 0) == (i < kCut));
  }
  scene.check();
  // Whoever asks does not wait any more, and whoever comes takes the oldest's place.
  Bytes question;
  append(question, read_of(scene.range(0, 64)));
  greeted.front()->send(question);
  CHECK(greeted.front()->receive(16 + 64).size() == 16 + 64);
  const UniqueFd one = call(scene.address());
  RawPeer last(scene.address());
  REQUIRE(last.accepted());
  CHECK(cut(speechless[kCut], 5000));
  CHECK_FALSE(cut(speechless[kCut + 1], 0));
}

TEST_CASE("ofi: whatever is changed in good frames, nobody else's bytes change") {
  Scene scene;
  Prng prng(93);
  for (int round = 0; round < 300; ++round) {
    INFO("round " << round);
    RawPeer peer(scene.address());
    REQUIRE(peer.accepted());
    Bytes stream;
    std::vector<std::size_t> headers;
    for (std::uint64_t frames = 1 + prng.below(4); frames > 0; --frames) {
      headers.push_back(stream.size());
      const Range range = scene.range(prng.below(kMiB / 2), 1 + prng.below(20'000));
      const bool write = prng.below(2) == 0;
      append(stream, write ? write_of(range) : read_of(range));
      if (write) stream.resize(stream.size() + range.length_bytes, std::byte{0xEE});
    }
    for (std::uint64_t changes = 1 + prng.below(3); changes > 0; --changes) {
      const std::size_t at = headers[prng.below(headers.size())] + prng.below(sizeof(Frame));
      const std::byte values[] = {std::byte{0}, std::byte{0xFF}, std::byte{0x7F},
                                  stream[at] ^ static_cast<std::byte>(1U << prng.below(8))};
      stream[at] = values[prng.below(4)];
    }
    for (std::size_t at = 0; at < stream.size();) {
      const std::size_t end = std::min(stream.size(), at + 1 + prng.below(30'000));
      peer.send({stream.begin() + static_cast<std::ptrdiff_t>(at),
                 stream.begin() + static_cast<std::ptrdiff_t>(end)});
      at = end;
    }
    if (round % 10 == 9) scene.check();
  }
  scene.check();
}

}  // namespace
}  // namespace ho::test
