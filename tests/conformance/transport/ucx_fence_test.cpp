// The promise that fences make, over devices: once one is answered, no byte of the old rail
// arrives. HO_SEEDS=N in the environment gives N times as many rounds.
#include <ucp/api/ucp.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <future>
#include <span>
#include <string>
#include <vector>

#include "common/base/units.hpp"
#include "common/transport/ucx/loader/rdma_devices.hpp"
#include "common/transport/ucx/wire.hpp"
#include "tests/conformance/transport/ucx_peer.hpp"
#include "tests/support/seeds.hpp"
#include "tests/support/skip.hpp"
#include "tools/bench/target_process.hpp"

namespace ho::test {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kPutBytes = 128 * kKiB;
constexpr std::size_t kPuts = 8;  ///< places in the memory
constexpr std::size_t kBytes = kPuts * kPutBytes;

/// A round's stamp in every eight bytes.
std::vector<std::byte> stamped(std::uint64_t round) {
  std::vector<std::byte> bytes(kBytes);
  for (std::size_t at = 0; at < kBytes; at += sizeof round) {
    std::memcpy(bytes.data() + at, &round, sizeof round);
  }
  return bytes;
}

bool under_way(void* request) {
  return UCS_PTR_IS_PTR(request) && ucp_request_check_status(request) == UCS_INPROGRESS;
}

TEST_CASE("ucx fence: of puts that go on all the time no byte arrives after the answer") {
  if (const auto there = transport::check_rdma_device(); !there) {
    return skip(there.error().context());
  }
  const std::uint64_t rounds = seed_count(20);
  bench::TargetProcess::Options options;
  options.driver = bench::Driver::kUcx;
  const auto target = bench::TargetProcess::start(options);
  if (!target) FAIL(target.error().message());
  const auto segment = bench::Segment::create(kBytes);
  REQUIRE(segment.ok());
  const auto exposed = (*target)->expose(**segment, transport::Rights::kReadWrite);
  if (!exposed) FAIL(exposed.error().message());
  const auto key = transport::decode_ucx_key(exposed->key);
  REQUIRE(key.ok());
  const std::span<const std::byte> memory = (*segment)->bytes();
  UcxPeer peer;
  std::uint64_t caught = 0;
  const auto connect = [&] {
    const auto workers = transport::decode_ucx_address((*target)->peer().address);
    REQUIRE(workers.ok());
    return peer.connect(workers->front());
  };
  const auto put = [&](ucp_ep_h endpoint, ucp_rkey_h with, std::span<const std::byte> bytes,
                       std::size_t number) {
    const std::size_t at = number % kPuts * kPutBytes;
    return UcxPeer::put(endpoint, bytes.subspan(at, kPutBytes), key->base + at, with);
  };
  ucp_ep_h old = connect();
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    INFO("round " << round);
    const std::vector<std::byte> first = stamped(2 * round);
    const std::vector<std::byte> second = stamped(2 * round + 1);
    ucp_rkey_h old_key = UcxPeer::unpack(old, key->packed.front());
    std::vector<void*> cut;
    auto answer = (*target)->peer().fence({0, static_cast<std::uint32_t>(round)});
    while (answer.wait_for(0s) != std::future_status::ready) {
      if (cut.size() < 64) cut.push_back(put(old, old_key, first, cut.size()));
      peer.progress();
    }
    const auto fenced = answer.get();
    if (!fenced) FAIL(fenced.error().message());
    REQUIRE_FALSE(fenced->empty());
    const bool some_arrived = std::memcmp(memory.data(), first.data(), 64) == 0;
    caught += some_arrived && std::any_of(cut.begin(), cut.end(), under_way);

    // The old connection sends on, beside the new one.
    ucp_ep_h fresh = connect();
    ucp_rkey_h fresh_key = UcxPeer::unpack(fresh, key->packed.front());
    for (std::size_t i = 0; i < kPuts; ++i) {
      REQUIRE(peer.ends(put(fresh, fresh_key, second, i), 20s));
      cut.push_back(put(old, old_key, first, i));
    }
    REQUIRE(peer.ends(UcxPeer::flush(fresh), 20s));
    const auto later = std::chrono::steady_clock::now() + 20ms;
    while (std::chrono::steady_clock::now() < later) peer.progress();
    REQUIRE(std::memcmp(memory.data(), second.data(), kBytes) == 0);
    ucp_rkey_destroy(fresh_key);
    peer.close(old);
    for (void* const request : cut) (void)peer.ends(request, 5s);
    ucp_rkey_destroy(old_key);
    REQUIRE(std::memcmp(memory.data(), second.data(), kBytes) == 0);
    REQUIRE((*target)->alive());
    old = fresh;
  }
  peer.close(old);
  // The rounds prove nothing unless many are caught half-way.
  CHECK(caught > rounds / 2);
  std::printf("%llu rounds, %llu caught half-way\n", static_cast<unsigned long long>(rounds),
              static_cast<unsigned long long>(caught));
}

}  // namespace
}  // namespace ho::test
