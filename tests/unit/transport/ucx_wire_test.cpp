#include "common/transport/ucx/wire.hpp"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "common/base/units.hpp"
#include "common/transport/striping/rail.hpp"

namespace ho::transport {
namespace {

TEST_CASE("ucx wire: keys and addresses read back what was written, and rubbish is refused") {
  const std::string bytes("\0\xFF/x", 4);
  const UcxKey key{0x7f00'0000'1000, 64 * kMiB, Rights::kReadWrite, {bytes}};
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

  const std::string address = encode_ucx_address({&bytes, 1});
  const auto workers = decode_ucx_address(address);
  REQUIRE(workers.ok());
  CHECK(*workers == std::vector{bytes});
  for (std::size_t length = 0; length < address.size(); ++length) {
    CHECK_FALSE(decode_ucx_address(address.substr(0, length)).ok());
  }
}

TEST_CASE("ucx wire: a target with several devices has a worker and a key for each, up to eight") {
  std::vector<std::string> workers;
  UcxKey key{4096, 4096, Rights::kRead, {}};
  for (std::size_t i = 0; i < kRailsMax; ++i) {
    workers.push_back("worker " + std::to_string(i));
    key.packed.push_back("key " + std::to_string(i));
    const auto read = decode_ucx_address(encode_ucx_address(workers));
    REQUIRE(read.ok());
    CHECK(*read == workers);
    const auto read_key = decode_ucx_key(encode_ucx_key(key));
    REQUIRE(read_key.ok());
    CHECK(read_key->packed == key.packed);
  }
  const std::string address = encode_ucx_address(workers);
  CHECK_FALSE(decode_ucx_address(address + "," + encode_ucx_address({workers.data(), 1})).ok());
  CHECK_FALSE(decode_ucx_address(address + ",").ok());
  CHECK_FALSE(decode_ucx_address("," + address).ok());
  const std::string text = encode_ucx_key(key);
  const UcxKey one{4096, 4096, Rights::kRead, {"key"}};
  const std::string more = encode_ucx_key(one).substr(encode_ucx_key(one).rfind("/6b"));
  CHECK_FALSE(decode_ucx_key(text + more).ok());
  CHECK_FALSE(decode_ucx_key(text + "/6b").ok());
}

}  // namespace
}  // namespace ho::transport
