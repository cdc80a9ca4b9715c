#include "common/transport/ofi/answer_count.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <initializer_list>
#include <vector>

namespace ho::test {
namespace {

using transport::AnswerCount;
using Bytes = std::vector<std::byte>;

/// A hello whose body has so many bytes.
Bytes hello(std::uint16_t body_bytes) {
  Bytes bytes(std::size_t{32} + body_bytes, std::byte{0xFF});
  const std::uint16_t sent = htons(body_bytes);
  std::memcpy(bytes.data() + 2, &sent, sizeof sent);
  return bytes;
}

/// A header and what was read behind it; nothing: an acknowledgement.
void answer(Bytes& to, std::size_t read_bytes) {
  Bytes bytes(16 + read_bytes, std::byte{0xFF});
  const std::uint64_t whole = bytes.size();
  std::memcpy(bytes.data() + 8, &whole, sizeof whole);
  to.insert(to.end(), bytes.begin(), bytes.end());
}

TEST_CASE("answer count: answers are counted at their last byte however they are cut") {
  for (const std::uint16_t body : std::initializer_list<std::uint16_t>{0, 8, 256}) {
    Bytes bytes = hello(body);
    std::vector<std::size_t> ends;
    for (const std::size_t read : {0U, 1U, 64U, 0U, 0U, 9000U, 16U}) {
      answer(bytes, read);
      ends.push_back(bytes.size());
    }
    for (std::size_t piece = 1; piece <= bytes.size();
         piece = piece < 200 ? piece + 1 : piece * 3) {
      INFO("body " << body << " in pieces of " << piece);
      AnswerCount count;
      std::size_t sum = 0;
      for (std::size_t at = 0; at < bytes.size(); at += piece) {
        const std::size_t end = std::min(bytes.size(), at + piece);
        sum += count.sent(std::span(bytes).subspan(at, end - at));
        const auto ended =
            std::count_if(ends.begin(), ends.end(), [end](std::size_t one) { return one <= end; });
        REQUIRE(sum == static_cast<std::size_t>(ended));
      }
    }
  }
}

TEST_CASE("answer count: a hello is none, and a length shorter than its header is the header's") {
  AnswerCount count;
  CHECK(count.sent(hello(8)) == 0);
  CHECK(count.sent(Bytes(16)) == 1);
  Bytes next;
  answer(next, 3);
  CHECK(count.sent(next) == 1);
  CHECK(count.sent({}) == 0);
}

}  // namespace
}  // namespace ho::test
