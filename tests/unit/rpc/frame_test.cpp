#include "proto/control/frame.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "common/base/prng.hpp"

namespace ho {

namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string frame(const std::string& payload, std::size_t descriptors = 0) {
  auto made = encode_frame(payload, descriptors);
  REQUIRE(made.ok());
  return *made;
}

}  // namespace

TEST_CASE("frame: encoded frames decode again, however the stream is split") {
  Prng random(11);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::string> payloads;
    std::string stream;
    for (int i = 0; i < 5; ++i) {
      std::string payload(random.below(300), 'a');
      for (char& c : payload) c = static_cast<char>(random.next());
      stream += frame(payload, static_cast<std::size_t>(i));
      payloads.push_back(payload);
    }
    FrameDecoder decoder;
    std::size_t position = 0;
    std::size_t frames = 0;
    while (position < stream.size()) {
      const std::size_t cut =
          std::min<std::size_t>(1 + random.below(100), stream.size() - position);
      auto left = bytes_of(stream).subspan(position, cut);
      position += cut;
      while (!left.empty()) {
        const auto taken = decoder.feed(left);
        REQUIRE(taken.ok());
        left = left.subspan(*taken);
        if (decoder.state() != FrameDecoder::State::kReady) continue;
        const auto got = decoder.take();
        REQUIRE(frames < payloads.size());
        CHECK(got.payload == payloads[frames]);
        CHECK(got.descriptors == frames);
        ++frames;
      }
    }
    CHECK(frames == payloads.size());
    CHECK_FALSE(decoder.mid_frame());
  }
}

TEST_CASE("frame: a stream that ends inside a frame yields no frame") {
  const std::string whole = frame("hello");
  for (std::size_t length = 0; length < whole.size(); ++length) {
    FrameDecoder decoder;
    const auto taken = decoder.feed(bytes_of(whole).first(length));
    REQUIRE(taken.ok());
    CHECK(*taken == length);
    CHECK(decoder.state() != FrameDecoder::State::kReady);
    CHECK(decoder.mid_frame() == (length > 0));
  }
}

TEST_CASE("frame: limits hold on both sides") {
  CHECK(encode_frame(std::string(kFrameBytesMax, 'x'), 0).ok());
  CHECK(encode_frame(std::string(std::size_t{kFrameBytesMax} + 1, 'x'), 0).error().code() ==
        Errc::kInvalidArgument);
  CHECK(encode_frame("x", kFrameDescriptorsMax + 1U).error().code() == Errc::kInvalidArgument);
  // 4 MiB + 1 in the header, and 65 descriptors in the header.
  for (const std::string& header : {std::string("\x01\x00\x40\x00\x00\x00HO", 8),
                                    std::string("\x01\x00\x00\x00\x41\x00HO", 8)}) {
    FrameDecoder decoder;
    CHECK(decoder.feed(bytes_of(header)).error().code() == Errc::kCorrupt);
    CHECK(decoder.state() == FrameDecoder::State::kBroken);
  }
}

TEST_CASE("frame: a broken stream stays broken") {
  FrameDecoder decoder;
  const std::string garbage = "GET / HTTP/1.1\r\n";
  REQUIRE_FALSE(decoder.feed(bytes_of(garbage)).ok());
  CHECK_FALSE(decoder.feed(bytes_of(frame("fine"))).ok());
  CHECK(decoder.state() == FrameDecoder::State::kBroken);
}

TEST_CASE("frame: a flipped bit of the magic is refused") {
  for (int bit = 48; bit < 64; ++bit) {
    std::string bad = frame("hello");
    auto& byte = bad[static_cast<std::size_t>(bit / 8)];
    byte = static_cast<char>(byte ^ (1 << (bit % 8)));
    FrameDecoder decoder;
    CHECK_FALSE(decoder.feed(bytes_of(bad)).ok());
  }
}

}  // namespace ho
