// The ucx driver's target against an initiator that speaks UCX by itself, and has UCX emulate
// access by messages to the target's process.
#include <ucp/api/ucp.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <string>

#include "common/base/checksum.hpp"
#include "common/transport/ucx/loader/rdma_devices.hpp"
#include "common/transport/ucx/settings.hpp"
#include "common/transport/ucx/wire.hpp"
#include "tests/conformance/transport/rig.hpp"
#include "tests/conformance/transport/ucx_peer.hpp"
#include "tests/support/skip.hpp"

namespace ho::test {
namespace {

using namespace std::chrono_literals;

/// A key that names no device's registration: UCX sends messages then, that name an address.
/// Source: ucp_rkey_pack() of UCX 1.13: a map of devices, 8 bytes, and the kind of memory, 1 byte.
const std::string kNoDevice(9, '\0');

TEST_CASE("ucx: what UCX would emulate by messages is neither written nor read at the target") {
  const auto there = transport::check_rdma_device();
  if (!there) {
    skip(there.error().context());
    return;
  }
  const auto rig = make_rig("ucx");
  Bench other(*rig, kMiB, 4096);
  fill(other.exposed.truth, 5);
  const std::uint64_t before = checksum64(other.exposed.truth);
  const auto key = transport::decode_ucx_key(other.exposed.key);
  const auto address = transport::decode_ucx_address(rig->peer(other.target).address);
  REQUIRE((key.ok() && address.ok()));
  // They outlive the endpoint: what has not ended in time ends with it.
  const std::vector<std::byte> bytes(64, std::byte{0xEE});
  std::vector<std::byte> read(64);
  std::vector<std::byte> stolen(64);
  {
    UcxPeer liar;
    ucp_ep_h endpoint = liar.connect(address->front());
    // That it is connected, and what it may: the device's access with a good key.
    ucp_rkey_h good = UcxPeer::unpack(endpoint, key->packed.front());
    REQUIRE(liar.ends(UcxPeer::get(endpoint, read, key->base, good), 20s));
    REQUIRE(std::memcmp(read.data(), other.exposed.truth.data(), read.size()) == 0);
    ucp_rkey_destroy(good);
    ucp_rkey_h none = UcxPeer::unpack(endpoint, kNoDevice);
    (void)liar.ends(UcxPeer::put(endpoint, bytes, key->base + 4096, none), 2s);
    (void)liar.ends(UcxPeer::flush(endpoint), 2s);
    CHECK(rig->alive(other.target));
    CHECK(checksum64(other.exposed.truth) == before);
    CHECK_FALSE(liar.ends(UcxPeer::get(endpoint, stolen, key->base, none), 2s));
    CHECK(std::memcmp(stolen.data(), other.exposed.truth.data(), stolen.size()) != 0);
    ucp_rkey_destroy(none);
    liar.close(endpoint);
  }
  REQUIRE(rig->alive(other.target));
  REQUIRE(other.get(1, {0, 0, 4096}).ok());
  CHECK(collect(*rig, *other.initiator, 1)[0].code == Errc::kOk);
}

}  // namespace
}  // namespace ho::test
