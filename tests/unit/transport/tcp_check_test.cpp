// The checks between a peer and memory over tcp, and the text of addresses and keys.
#include "common/transport/tcp/check.hpp"

#include <catch2/catch.hpp>
#include <limits>
#include <string>
#include <vector>

#include "common/base/prng.hpp"
#include "common/base/units.hpp"

namespace ho::transport::tcp {
namespace {

using Verdict = Admission::Verdict;

constexpr std::uint64_t kTop = std::numeric_limits<std::uint64_t>::max();

struct Two {
  std::vector<std::byte> memory = std::vector<std::byte>(8192);
  Segments segments;
  SegmentKey both;
  SegmentKey read_only;
  Two() {
    both = *segments.add(std::span(memory).first(4096), Rights::kReadWrite);
    read_only = *segments.add(std::span(memory).last(4096), Rights::kRead);
  }
  [[nodiscard]] static Request request(OpCode op, const SegmentKey& key, std::uint64_t offset,
                                       std::uint64_t length) {
    Request out;
    out.op = op;
    out.segment = key.segment;
    out.generation = key.generation;
    out.offset = offset;
    out.length = length;
    return out;
  }
  [[nodiscard]] Admission ask(OpCode op, const SegmentKey& key, std::uint64_t offset,
                              std::uint64_t length) const {
    return segments.admit(request(op, key, offset, length));
  }
};

TEST_CASE("tcp check: what is granted is exactly the range that was asked for") {
  Two two;
  for (const auto& [offset, length] : std::vector<std::pair<std::uint64_t, std::uint64_t>>{
           {0, 1}, {0, 4096}, {4095, 1}, {17, 400}}) {
    for (const OpCode op : {OpCode::kGet, OpCode::kPut}) {
      const Admission granted = two.ask(op, two.both, offset, length);
      REQUIRE(granted.verdict == Verdict::kGranted);
      CHECK(granted.memory.data() == two.memory.data() + offset);
      CHECK(granted.memory.size() == length);
      CHECK(granted.refusal == nullptr);
    }
  }
}

TEST_CASE("tcp check: no range beyond the segment is granted, overflow included") {
  Two two;
  for (const auto& [offset, length] : std::vector<std::pair<std::uint64_t, std::uint64_t>>{
           {0, 4097},
           {1, 4096},
           {4096, 1},
           {4095, 2},
           {kTop, 1},
           {kTop - 7, 16},
           {0, kTop},
           {1, kTop},
           {kTop - 4095, 4096},
           {std::uint64_t{1} << 63U, std::uint64_t{1} << 30U},
           {0, 0},
           {4096, 0},
           {0, kLengthMax + 1}}) {
    INFO(offset << " + " << length);
    for (const OpCode op : {OpCode::kGet, OpCode::kPut}) {
      const Admission refused = two.ask(op, two.both, offset, length);
      CHECK(refused.verdict == Verdict::kBroken);
      CHECK(refused.memory.empty());
      CHECK(refused.refusal != nullptr);
    }
  }
}

TEST_CASE("tcp check: another number, generation or right is denied") {
  Two two;
  CHECK(two.ask(OpCode::kGet, two.read_only, 0, 64).verdict == Verdict::kGranted);
  CHECK(two.ask(OpCode::kPut, two.read_only, 0, 64).verdict == Verdict::kDenied);
  for (SegmentKey key : {SegmentKey{two.both.segment, two.both.generation + 1},
                         SegmentKey{two.both.segment, two.both.generation - 1},
                         SegmentKey{two.both.segment + 7, two.both.generation},
                         SegmentKey{UINT32_MAX, UINT32_MAX}}) {
    CHECK(two.ask(OpCode::kGet, key, 0, 64).verdict == Verdict::kDenied);
    CHECK(two.ask(OpCode::kPut, key, 0, 64).verdict == Verdict::kDenied);
  }
}

TEST_CASE("tcp check: a removed segment is out of reach, and its number's next owner is another") {
  Two two;
  CHECK(two.segments.remove(two.both.segment, two.both.generation + 1).empty());
  CHECK(two.segments.remove(two.both.segment, two.both.generation).data() == two.memory.data());
  CHECK(two.segments.remove(two.both.segment, two.both.generation).empty());
  CHECK(two.ask(OpCode::kGet, two.both, 0, 64).verdict == Verdict::kDenied);
  const auto next = two.segments.add(std::span(two.memory).first(64), Rights::kReadWrite);
  REQUIRE(next);
  CHECK(next->segment == two.both.segment);
  CHECK(next->generation != two.both.generation);
  CHECK(two.ask(OpCode::kGet, two.both, 0, 64).verdict == Verdict::kDenied);
  CHECK(two.ask(OpCode::kGet, *next, 0, 64).verdict == Verdict::kGranted);
  CHECK(two.segments.live() == 2);
}

TEST_CASE("tcp check: frames that our initiators do not send are recognized") {
  Two two;
  const Request good = Two::request(OpCode::kGet, two.both, 0, 64);
  REQUIRE(two.segments.admit(good).verdict == Verdict::kGranted);
  for (std::size_t byte : {0U, 4U, 5U, 6U, 7U}) {  // magic, op, zero
    Request bad = good;
    reinterpret_cast<unsigned char*>(&bad)[byte] ^= 0x40U;
    CHECK(two.segments.admit(bad).verdict == Verdict::kBroken);
  }
  Hello hello;
  CHECK(well_formed(hello));
  for (const auto& spoil : std::vector<void (*)(Hello&)>{
           [](Hello& h) { h.magic ^= 1U; }, [](Hello& h) { h.version += 1; },
           [](Hello& h) { h.rail = kRailsMax; },
           [](Hello& h) { h.lane = static_cast<LaneKind>(kLaneKinds); },
           [](Hello& h) { h.zero = 1; }}) {
    Hello bad;
    spoil(bad);
    CHECK_FALSE(well_formed(bad));
  }
  const std::vector<std::uint8_t> a(16, 1);
  std::vector<std::uint8_t> b = a;
  CHECK(equal_secrets(a, b));
  b[15] ^= 0x80U;
  CHECK_FALSE(equal_secrets(a, b));
  CHECK_FALSE(equal_secrets(a, std::span(a).first(15)));
}

TEST_CASE("tcp wire: keys and addresses read back what was written, and rubbish is refused") {
  const SegmentKey key{7, 0xFFFFFFFFU, 256 * kMiB, Rights::kReadWrite};
  const auto read = decode_key(encode_key(key));
  REQUIRE(read.ok());
  CHECK(read->segment == key.segment);
  CHECK(read->generation == key.generation);
  CHECK(read->length_bytes == key.length_bytes);
  CHECK(read->rights == key.rights);
  for (const char* text : {"", "tcp", "tcp/1/2/3", "tcp/1/2/0/1", "tcp/1/2/3/2", "tcp/1/2/3/1/",
                           "udp/1/2/3/1", "tcp/100000000/2/3/1", "tcp/1/-2/3/1"}) {
    INFO(text);
    CHECK_FALSE(decode_key(text).ok());
  }
  for (const char* text : {"127.0.0.1:7711", "10.0.0.1:1,10.0.1.1:1", "[::1]:65535"}) {
    INFO(text);
    const auto rails = decode_rails(text);
    REQUIRE(rails.ok());
    std::vector<net::SocketAddress> parsed;
    for (const std::string& rail : *rails) parsed.push_back(*net::parse_socket_address(rail));
    CHECK(encode_rails(parsed, "") == text);
    const auto named = decode_rails(encode_rails(parsed, "node3"));
    REQUIRE(named.ok());
    REQUIRE(named->size() == parsed.size());
    const auto rail = decode_rail(named->front());
    REQUIRE(rail.ok());
    CHECK(rail->name == "node3");
    CHECK(net::to_text(rail->where) == net::to_text(parsed.front()));
  }
  for (const char* text :
       {"", ",", "127.0.0.1", "127.0.0.1:", ":1", "127.0.0.1:65536", "n:1", "::1:80",
        "[127.0.0.1]:80", "1.1.1.1:1,1.1.1.1:1", "1.1.1.1:1,", "1.1.1.1:1/", "/n", "1.1.1.1/n"}) {
    INFO(text);
    CHECK_FALSE(decode_rails(text).ok());
  }
  Prng prng(5);
  for (int i = 0; i < 2000; ++i) {
    std::string text = encode_key(key);
    text[prng.below(text.size())] = static_cast<char>(prng.next());
    (void)decode_key(text);  // must not fault; ASan watches
    (void)decode_rails(text);
  }
}

}  // namespace
}  // namespace ho::transport::tcp
