#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/check.hpp"
#include "proto/control/frame.hpp"

/// Feeds any bytes as a stream, split as the first byte says. Each decoded frame can be encoded
/// again, and no byte is lost or consumed twice.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::size_t piece = 1 + data[0];
  auto left = std::as_bytes(std::span(data + 1, size - 1));
  ho::FrameDecoder decoder;
  while (!left.empty()) {
    auto part = left.first(std::min(piece, left.size()));
    left = left.subspan(part.size());
    while (!part.empty()) {
      const auto taken = decoder.feed(part);
      if (!taken) {
        HO_CHECK(decoder.state() == ho::FrameDecoder::State::kBroken);
        HO_CHECK(!decoder.feed(part).ok());
        return 0;
      }
      HO_CHECK(*taken > 0 && *taken <= part.size());
      part = part.subspan(*taken);
      if (decoder.state() != ho::FrameDecoder::State::kReady) continue;
      const auto frame = decoder.take();
      HO_CHECK(ho::encode_frame(frame.payload, frame.descriptors).ok());
    }
  }
  return 0;
}
