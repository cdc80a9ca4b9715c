#include "common/transport/ofi/frame_guard.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

namespace ho::test {
namespace {

using transport::FrameGuard;
using transport::Unanswered;
using Bytes = std::vector<std::byte>;

void put(Bytes& to, std::uint64_t value, std::size_t length) {
  const auto* const first = reinterpret_cast<const std::byte*>(&value);
  to.insert(to.end(), first, first + length);
}

/// A hello and the eight bytes that name the initiator.
Bytes hello() {
  Bytes bytes;
  put(bytes, 3, 1);
  put(bytes, 0, 1);
  put(bytes, htons(8), 2);
  put(bytes, 0, 4);
  for (const std::uint64_t field : {0U, 0U, 1U, 0x4711U}) put(bytes, field, 8);
  return bytes;
}

struct Frame {
  std::uint8_t op = 4;
  std::uint16_t flags = 4;
  std::uint8_t ranges = 1;
  std::uint8_t header_bytes = 40;
  std::uint64_t whole_bytes = 40;
  std::uint64_t offset = 0;
  std::uint64_t length_bytes = 0;
};

void put(Bytes& to, const Frame& frame) {
  put(to, 3, 1);
  put(to, frame.op, 1);
  put(to, frame.flags, 2);
  put(to, 0, 1);
  put(to, frame.ranges, 1);
  put(to, frame.header_bytes, 1);
  put(to, 0, 1);
  for (const std::uint64_t field : {frame.whole_bytes, frame.offset, frame.length_bytes}) {
    put(to, field, 8);
  }
  put(to, 0xFEED, 8);
}

Frame write(std::uint64_t offset, std::uint64_t length_bytes) {
  return {.whole_bytes = 40 + length_bytes, .offset = offset, .length_bytes = length_bytes};
}

Frame read(std::uint64_t offset, std::uint64_t length_bytes) {
  return {.op = 2, .flags = 0, .offset = offset, .length_bytes = length_bytes};
}

/// How many bytes of it pass in pieces of `piece`.
std::size_t passed(FrameGuard& guard, const Bytes& bytes, std::size_t piece) {
  std::size_t sum = 0;
  for (std::size_t at = 0; at < bytes.size(); at += piece) {
    const std::size_t length = std::min(piece, bytes.size() - at);
    const std::size_t some = guard.admit(std::span(bytes).subspan(at, length));
    sum += some;
    if (some < length) break;
  }
  return sum;
}

/// Says hello and sends it; nothing may pass from where the frame would be whole on.
const char* refusal_of(const Frame& frame) {
  Bytes bytes = hello();
  const std::size_t before = bytes.size();
  put(bytes, frame);
  for (const std::size_t piece : {bytes.size(), std::size_t{1}, std::size_t{16}}) {
    Unanswered all;
    FrameGuard guard(all);
    const std::size_t sum = passed(guard, bytes, piece);
    if (guard.refusal() == nullptr) return nullptr;
    CHECK(sum < before + 40);
    CHECK(guard.admit(bytes) == 0);
  }
  Unanswered all;
  FrameGuard guard(all);
  (void)guard.admit(bytes);
  return guard.refusal();
}

TEST_CASE("frame guard: reads and writes pass however they are cut") {
  Bytes bytes = hello();
  for (const std::uint64_t length : {1U, 64U, 9000U}) {
    put(bytes, write(1000, length));
    bytes.resize(bytes.size() + length, std::byte{0xFF});
    put(bytes, read(FrameGuard::kReachMax, length));
  }
  for (std::size_t piece = 1; piece < 200; ++piece) {
    Unanswered all;
    FrameGuard guard(all);
    REQUIRE(passed(guard, bytes, piece) == bytes.size());
    REQUIRE(guard.refusal() == nullptr);
  }
}

TEST_CASE("frame guard: whoever has only said hello, or been refused, has asked for nothing") {
  Unanswered all;
  FrameGuard guard(all);
  Bytes bytes = hello();
  for (const std::byte& each : bytes) {
    CHECK_FALSE(guard.greeted());
    (void)guard.admit({&each, 1});
  }
  CHECK(guard.greeted());
  CHECK_FALSE(guard.asked());
  FrameGuard refused(all);
  (void)refused.admit(bytes);
  Bytes lie;
  Frame short_write = write(0, 64);
  short_write.whole_bytes -= 1;
  put(lie, short_write);
  (void)refused.admit(lie);
  CHECK(refused.refusal() != nullptr);
  CHECK_FALSE(refused.asked());
  CHECK(refused.greeted());
  Bytes question;
  put(question, read(0, 1));
  CHECK(guard.admit(std::span(question).first(39)) == 39);
  CHECK_FALSE(guard.asked());
  CHECK(guard.admit(std::span(question).subspan(39)) == 1);
  CHECK(guard.asked());
  CHECK(guard.greeted());
}

TEST_CASE("frame guard: what follows a write's bytes is looked at again") {
  Unanswered all;
  FrameGuard guard(all);
  Bytes bytes = hello();
  put(bytes, write(0, 100));
  bytes.resize(bytes.size() + 100);
  const std::size_t good = bytes.size();
  put(bytes, write(4096, ~std::uint64_t{0} - 4095));
  CHECK(guard.admit(bytes) == good + 16);  // all but the range
  CHECK(guard.refusal() == std::string("ofi: range outside of the region"));
}

TEST_CASE("frame guard: no more requests pass than the address may have unanswered") {
  Unanswered all;
  FrameGuard guard(all);
  FrameGuard other(all);
  const Bytes greeting = hello();
  CHECK(guard.admit(greeting) == greeting.size());
  CHECK(other.admit(greeting) == greeting.size());
  Bytes some_read;
  put(some_read, read(0, 64));
  Bytes some_write;
  put(some_write, write(0, 64));
  some_write.resize(some_write.size() + 64);
  Frame silent_write = write(0, 64);
  silent_write.flags = 0;
  Bytes unheard;  // nobody waits for its end
  put(unheard, silent_write);
  unheard.resize(unheard.size() + 64);
  for (std::size_t i = 0; i < Unanswered::kMax; ++i) {
    const Bytes& request = i % 3 == 0 ? some_write : some_read;
    FrameGuard& asks = i % 2 == 0 ? guard : other;
    REQUIRE(asks.admit(request) == request.size());
    REQUIRE(asks.admit(unheard) == unheard.size());
  }
  CHECK(all.count() == Unanswered::kMax);
  guard.answered(3);
  for (int i = 0; i < 3; ++i) REQUIRE(other.admit(some_read) == some_read.size());
  CHECK(other.admit(some_write) == 16);  // all but the range
  CHECK(other.refusal() ==
        std::string("ofi: more requests than may wait for their answers to be taken"));
  CHECK(guard.admit(unheard) == unheard.size());
  CHECK(guard.refusal() == nullptr);
}

TEST_CASE("frame guard: what a connection leaves unanswered is the address's again when it ends") {
  Unanswered all;
  Bytes bytes = hello();
  for (int i = 0; i < 5; ++i) put(bytes, read(0, 64));
  FrameGuard stays(all);
  CHECK(stays.admit(bytes) == bytes.size());
  {
    FrameGuard goes(all);
    CHECK(goes.admit(bytes) == bytes.size());
    goes.answered(2);
    CHECK(all.count() == 8);
  }
  CHECK(all.count() == 5);
  stays.answered(100);  // more than were asked for are nobody's
  CHECK(all.count() == 0);
}

TEST_CASE("frame guard: offsets and lengths that can overflow do not pass") {
  const std::uint64_t reach = FrameGuard::kReachMax;
  for (const std::uint64_t offset : {std::uint64_t{0}, std::uint64_t{4096}, reach}) {
    for (const std::uint64_t length : {0 - offset - 1, ~std::uint64_t{0} - offset, reach + 1}) {
      INFO(offset << " + " << length);
      CHECK(refusal_of(write(offset, length)) != nullptr);
      CHECK(refusal_of(read(offset, length)) != nullptr);
    }
  }
  CHECK(refusal_of(write(reach + 1, 1)) != nullptr);
  CHECK(refusal_of(read(~std::uint64_t{0}, 1)) != nullptr);
}

TEST_CASE("frame guard: only reads and writes of one range pass, as long as they say") {
  CHECK(refusal_of(read(0, 1)) == nullptr);
  CHECK(refusal_of(read(0, 0)) != nullptr);
  for (int op = 0; op < 256; ++op) {
    if (op == 2 || op == 4) continue;
    Frame frame = read(0, 64);
    frame.op = static_cast<std::uint8_t>(op);
    INFO("op " << op);
    CHECK(refusal_of(frame) != nullptr);
  }
  for (int value = 0; value < 256; ++value) {
    INFO("value " << value);
    Frame ranges = write(0, 64);
    ranges.ranges = static_cast<std::uint8_t>(value);
    CHECK((refusal_of(ranges) == nullptr) == (value == 1));
    Frame header = write(0, 64);
    header.header_bytes = static_cast<std::uint8_t>(value);
    CHECK((refusal_of(header) == nullptr) == (value == 40));
    Frame flags = write(0, 64);
    flags.flags = static_cast<std::uint16_t>(value);
    CHECK((refusal_of(flags) == nullptr) == (value == 0 || value == 4));
  }
  for (const std::uint64_t whole : {0U, 16U, 39U, 40U, 103U, 105U}) {
    Frame frame = write(0, 64);
    frame.whole_bytes = whole;
    CHECK(refusal_of(frame) != nullptr);
  }
}

TEST_CASE("frame guard: a hello that is not ours does not pass whole") {
  for (const std::size_t at : {0U, 1U, 2U, 3U, 24U, 31U}) {
    Bytes bytes = hello();
    bytes[at] ^= std::byte{1};
    Unanswered all;
    FrameGuard guard(all);
    CHECK(passed(guard, bytes, 1) == 31);
    CHECK(guard.refusal() == std::string("ofi: not our protocol"));
  }
}

}  // namespace
}  // namespace ho::test
