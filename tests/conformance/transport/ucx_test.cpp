// What is special to the ucx driver: it needs a device, and trusts UCX with bytes of peers.
#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <thread>

#include "common/transport/rdma_devices.hpp"
#include "common/transport/ucx/wire.hpp"
#include "common/transport/ucx_module.hpp"
#include "tests/conformance/transport/rig.hpp"
#include "tests/support/skip.hpp"
#include "tools/bench/target_process.hpp"

namespace ho::test {
namespace {

using namespace std::chrono_literals;
using transport::Rights;
using transport::UcxKey;

/// Skips the case where there is no device.
bool has_device() {
  const auto there = transport::check_rdma_device();
  if (!there) skip(there.error().context());
  return there.ok();
}

TEST_CASE("ucx: transports that only emulate are refused") {
  if (!has_device()) return;
  const SteadyClock clock;
  transport::UcxOptions options;
  options.devices.transports = "tcp";
  const auto made = transport::make_ucx_transport(options, clock);
  REQUIRE_FALSE(made.ok());
  CHECK(made.error().code() == Errc::kInvalidArgument);
  options.devices.transports = "rc";
  options.devices.devices = "nonesuch0:1";
  const auto absent = transport::make_ucx_transport(options, clock);
  REQUIRE_FALSE(absent.ok());
  CHECK(absent.error().code() == Errc::kUnsupported);
}

TEST_CASE("ucx: the target's device refuses a range beyond the region, whatever the grant says") {
  if (!has_device()) return;
  const auto rig = make_rig("ucx");
  Bench bench(*rig, kMiB, 2 * kMiB);
  auto key = transport::decode_ucx_key(bench.exposed.key);
  REQUIRE(key.ok());
  UcxKey longer = *key;
  longer.length_bytes = 2 * kMiB;
  transport::RegionGrant grant;
  grant.key = transport::encode_ucx_key(longer);
  grant.length_bytes = longer.length_bytes;
  const auto region = bench.initiator->attach(bench.peer, std::move(grant));
  REQUIRE(region.ok());  // its first byte is there
  REQUIRE(bench.initiator
              ->submit(transport::GetOp{OpId(1), bench.memory().first(64), bench.local, *region,
                                        kMiB + 4096, in(*rig, 5s)})
              .ok());
  const auto done = collect(*rig, *bench.initiator, 1);
  INFO(errc_name(done[0].code));
  CHECK((done[0].code == Errc::kPermissionDenied || done[0].code == Errc::kUnavailable));
  REQUIRE(rig->alive(bench.target));
}

TEST_CASE("ucx: a closed peer can be connected again, many times, in one process") {
  if (!has_device()) return;
  const auto rig = make_rig("ucx");
  Bench bench(*rig, kMiB, kMiB);
  fill(bench.exposed.truth, 7);
  for (int round = 0; round < 5; ++round) {
    INFO("round " << round);
    REQUIRE(bench.get(1, {0, 0, kMiB}).ok());
    bench.initiator->close_peer(bench.peer);
    REQUIRE(collect(*rig, *bench.initiator, 1)[0].code == Errc::kUnavailable);
    bench.initiator->detach(bench.region);
    const auto peer =
        bench.initiator->connect({NodeId(1), rig->address(bench.target)}, in(*rig, 10s));
    if (!peer) FAIL(peer.error().message());
    CHECK(peer->value() != bench.peer.value());
    bench.peer = *peer;
    const auto region = bench.initiator->attach(bench.peer, rig->grant(bench.exposed));
    if (!region) FAIL(region.error().message());
    bench.region = *region;
  }
  std::memset(bench.memory().data(), 0, kMiB);
  REQUIRE(bench.get(2, {0, 0, kMiB}).ok());
  REQUIRE(collect(*rig, *bench.initiator, 1)[0].code == Errc::kOk);
  CHECK(std::memcmp(bench.memory().data(), bench.exposed.truth.data(), kMiB) == 0);
}

TEST_CASE("ucx: a target that was shut takes nothing new in, and gives back what it has") {
  transport::UcxDevices devices;
  devices.transports = "tcp";
  devices.allow_emulation = true;  // nothing is transferred: any machine will do
  const auto target = transport::make_ucx_target(devices);
  if (!target) return skip(target.error().message());
  const auto segment = bench::Segment::create(64 * kKiB);
  REQUIRE(segment.ok());
  const transport::ExposeRequest request{(*segment)->bytes(), Rights::kRead, (*segment)->fd(),
                                         transport::TenantId(1)};
  const auto exposed = (*target)->expose(request);
  REQUIRE(exposed.ok());
  REQUIRE((*target)->admit(transport::TenantId(1)).ok());
  (*target)->shut();
  CHECK((*target)->admit(transport::TenantId(2)).error().code() == Errc::kUnavailable);
  CHECK((*target)->expose(request).error().code() == Errc::kUnavailable);
  CHECK((*target)->revoke(exposed->id).ok());
  CHECK((*target)->progress() == 0);
  CHECK((*target)->arm());
  (*target)->shut();
}

}  // namespace
}  // namespace ho::test
