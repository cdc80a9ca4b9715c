#include "client/blocks/block_keys.hpp"

#include <cstring>

#include "common/base/checksum.hpp"

namespace ho::client {

namespace {

// Any numbers, the same in all versions: jobs of different versions share blocks.
constexpr std::uint64_t kDigestSeed = 0x686f2d626c6f636b;
constexpr std::uint64_t kChecksumSeed = 0x686f2d6279746573;

}  // namespace

std::string block_space(std::span<const std::string> parts) {
  std::string out;
  for (const std::string& part : parts) out += std::to_string(part.size()) + ":" + part;
  return out;
}

BlockName name_block(const std::string& space, std::span<const std::byte> key) {
  std::string all = space;
  all.append(reinterpret_cast<const char*>(key.data()), key.size());
  const auto bytes = std::as_bytes(std::span(all));
  const auto digest = checksum128(bytes, kDigestSeed);
  return {{digest[0], digest[1]}, checksum128(bytes, kChecksumSeed)[0]};
}

std::uint64_t block_weight(const BlockDigest& key, NodeId node) {
  const std::uint64_t words[2] = {key.low, key.high};
  return checksum128(std::as_bytes(std::span(words)), node.value())[0];
}

}  // namespace ho::client
