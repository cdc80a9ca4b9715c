#include "common/transport/ucx/wire.hpp"

#include <catch2/catch.hpp>

#include "common/base/units.hpp"

namespace ho::transport {
namespace {

TEST_CASE("ucx wire: keys and addresses read back what was written, and rubbish is refused") {
  const UcxKey key{0x7f00'0000'1000, 64 * kMiB, Rights::kReadWrite, std::string("\0\xFF/x", 4)};
  const std::string text = encode_ucx_key(key);
  const auto read = decode_ucx_key(text);
  REQUIRE(read.ok());
  CHECK(read->base == key.base);
  CHECK(read->length_bytes == key.length_bytes);
  CHECK(read->rights == key.rights);
  CHECK(read->packed == key.packed);
  for (std::size_t length = 0; length < text.size(); ++length) {
    CHECK_FALSE(decode_ucx_key(text.substr(0, length)).ok());
  }
  CHECK_FALSE(decode_ucx_key("ffffffffffffffff" + text.substr(text.find('/'))).ok());
  std::string flipped = text;
  char& digit = flipped[flipped.rfind('/') - 1];
  digit = digit == '0' ? '1' : '0';
  CHECK_FALSE(decode_ucx_key(flipped).ok());

  const std::string address = encode_ucx_address(key.packed);
  REQUIRE(decode_ucx_address(address).ok());
  CHECK(*decode_ucx_address(address) == key.packed);
  for (std::size_t length = 0; length < address.size(); ++length) {
    CHECK_FALSE(decode_ucx_address(address.substr(0, length)).ok());
  }
}

}  // namespace
}  // namespace ho::transport
