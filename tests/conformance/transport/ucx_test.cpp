// Special to the ucx driver: it needs a device, and trusts UCX with bytes of peers.
#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/transport/ucx/loader/rdma_devices.hpp"
#include "common/transport/ucx/loader/ucx_module.hpp"
#include "common/transport/ucx/wire.hpp"
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

TEST_CASE("ucx: of several devices that are named, one that is not there costs nothing") {
  if (!has_device()) return;
  const SteadyClock clock;
  const auto device = transport::active_rdma_devices().front();
  const std::string name = device.name + ":" + std::to_string(device.port);
  transport::UcxOptions options;
  for (const std::string& names : {"nonesuch0:1," + name, name + ",nonesuch0:1"}) {
    INFO(names);
    options.devices.devices = names;
    const auto made = transport::make_ucx_transport(options, clock);
    if (!made) FAIL(made.error().message());
    CHECK(transport::make_ucx_target(options.devices).ok());
  }
  for (const std::string& names :
       {name + ",", "," + name, name + "," + name, std::string("a,b,c,d,e,f,g,h,i")}) {
    INFO(names);
    options.devices.devices = names;
    const auto refused = transport::make_ucx_transport(options, clock);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code() == Errc::kInvalidArgument);
  }
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
              ->submit(transport::MemoryOp{transport::Direction::kGet, OpId(1),
                                           bench.memory().first(64), bench.local, *region,
                                           kMiB + 4096, in(*rig, 5s)})
              .ok());
  const auto done = collect(*rig, *bench.initiator, 1);
  INFO(errc_name(done[0].code));
  CHECK((done[0].code == Errc::kPermissionDenied || done[0].code == Errc::kUnavailable));
  REQUIRE(rig->alive(bench.target));
}

/// Tries a key. The error says who refused what.
void check_refused(Bench& bench, const UcxKey& key) {
  transport::RegionGrant grant;
  grant.key = transport::encode_ucx_key(key);
  grant.length_bytes = key.length_bytes;
  const auto region = bench.initiator->attach(bench.peer, std::move(grant));
  REQUIRE_FALSE(region.ok());
  INFO(region.error().message());
  CHECK(region.error().code() == Errc::kPermissionDenied);
  CHECK(region.error().context().find("device refuses the key") != std::string::npos);
}

UcxKey key_of(const Exposed& exposed) {
  auto key = transport::decode_ucx_key(exposed.key);
  REQUIRE(key.ok());
  return *key;
}

TEST_CASE("ucx: a guessed key, and another target's, are refused, and the good one goes on") {
  if (!has_device()) return;
  const auto rig = make_rig("ucx");
  const std::size_t other = rig->add_target();  // forks, which UCX does not survive once in use
  Bench bench(*rig, kMiB, kMiB);
  // Where keys of one target differ is the device's number.
  const Exposed second = rig->expose(bench.target, kMiB, Rights::kReadWrite);
  const UcxKey good = key_of(bench.exposed);
  const std::string& first = good.packed.front();
  const std::string packed = key_of(second).packed.front();
  const auto differs = std::mismatch(packed.begin(), packed.end(), first.begin(), first.end());
  REQUIRE(differs.first != packed.end());
  REQUIRE(differs.second != first.end());
  const auto at = static_cast<std::size_t>(differs.second - first.begin());
  for (const int flip : {1, 2, 4}) {
    UcxKey guess = good;
    char& byte = guess.packed.front()[at];
    byte = static_cast<char>(byte ^ flip);
    if (guess.packed.front() != packed) check_refused(bench, guess);
  }
  check_refused(bench, key_of(rig->expose(other, kMiB, Rights::kReadWrite)));
  fill(bench.exposed.truth, 9);
  REQUIRE(bench.get(1, {0, 0, kMiB}).ok());
  REQUIRE(collect(*rig, *bench.initiator, 1)[0].code == Errc::kOk);
  CHECK(std::memcmp(bench.memory().data(), bench.exposed.truth.data(), kMiB) == 0);
  CHECK(rig->alive(bench.target));
  CHECK(rig->alive(other));
}

TEST_CASE("ucx: a key opens nothing on the connections of another session") {
  if (!has_device()) return;
  const auto target = transport::make_ucx_target({});
  if (!target) FAIL(target.error().message());
  const auto segment = bench::Segment::create(64 * kKiB);
  REQUIRE(segment.ok());
  std::vector<std::string> keys;
  std::vector<std::string> addresses;
  for (const SessionId session : {SessionId(1), SessionId(2)}) {
    const auto address = (*target)->admit({session, ""});
    REQUIRE(address.ok());
    addresses.push_back(*address);
    const auto exposed =
        (*target)->expose({(*segment)->bytes(), Rights::kReadWrite, (*segment)->fd(), session});
    REQUIRE(exposed.ok());
    keys.push_back(exposed->key);
  }
  const std::jthread owner([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) (void)(*target)->progress();
  });
  {
    const SteadyClock clock;
    const auto initiator = transport::make_ucx_transport({}, clock);
    REQUIRE(initiator.ok());
    const auto attach = [&](std::size_t session, std::size_t key) {
      const auto peer = (*initiator)->connect({NodeId(1), addresses[session]}, clock.now() + 20s);
      if (!peer) FAIL(peer.error().message());
      transport::RegionGrant grant;
      grant.key = keys[key];
      grant.length_bytes = 64 * kKiB;
      const auto region = (*initiator)->attach(*peer, std::move(grant));
      return region ? Errc::kOk : region.error().code();
    };
    CHECK(attach(0, 0) == Errc::kOk);
    CHECK(attach(1, 1) == Errc::kOk);
    CHECK(attach(0, 1) == Errc::kPermissionDenied);
    CHECK(attach(1, 0) == Errc::kPermissionDenied);
  }
}

TEST_CASE("ucx: a revoked key opens nothing of what is exposed after it") {
  if (!has_device()) return;
  const auto rig = make_rig("ucx");
  Bench bench(*rig, kMiB, kMiB);
  for (int round = 0; round < 4; ++round) {
    INFO("round " << round);
    const Exposed before = rig->expose(bench.target, kMiB, Rights::kReadWrite);
    (void)rig->revoke(before);
    const Exposed after = rig->expose(bench.target, kMiB, Rights::kReadWrite);
    UcxKey old = key_of(before);
    const UcxKey fresh = key_of(after);
    CHECK(old.packed != fresh.packed);
    check_refused(bench, old);
    old.base = fresh.base;  // should the device have given its number out again
    check_refused(bench, old);
    const auto region = bench.initiator->attach(bench.peer, rig->grant(after));
    if (!region) FAIL(region.error().message());
    bench.initiator->detach(*region);
  }
  REQUIRE(bench.get(1, {0, 0, kMiB}).ok());
  CHECK(collect(*rig, *bench.initiator, 1)[0].code == Errc::kOk);
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
    const auto peer = bench.initiator->connect(rig->peer(bench.target), in(*rig, 10s));
    if (!peer) FAIL(peer.error().message());
    CHECK(peer->value() != bench.peer.value());
    // Regions of the connection before have not come back with it.
    CHECK(bench.get(3, {0, 0, 64}).error().code() == Errc::kUnavailable);
    CHECK(bench.put(3, {0, 0, 64}).error().code() == Errc::kUnavailable);
    const auto stale = bench.initiator->attach(bench.peer, rig->grant(bench.exposed));
    REQUIRE_FALSE(stale.ok());
    CHECK(stale.error().code() == Errc::kUnavailable);
    bench.initiator->detach(bench.region);
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

/// A target over what UCX emulates, which any machine has; nullptr: it has no UCX.
std::unique_ptr<transport::Target> make_target_anywhere() {
  auto target = transport::make_ucx_target(bench::ucx_over_tcp());
  if (target) return std::move(*target);
  skip(target.error().message());
  return nullptr;
}

TEST_CASE("ucx: a target that was shut takes nothing new in, and gives back what it has") {
  const auto target = make_target_anywhere();
  if (target == nullptr) return;
  const auto segment = bench::Segment::create(64 * kKiB);
  REQUIRE(segment.ok());
  const transport::ExposeRequest request{(*segment)->bytes(), Rights::kRead, (*segment)->fd(),
                                         SessionId(1)};
  CHECK(target->expose(request).error().code() == Errc::kNotFound);
  REQUIRE(target->admit({SessionId(1), ""}).ok());
  const auto exposed = target->expose(request);
  REQUIRE(exposed.ok());
  target->shut();
  CHECK(target->admit({SessionId(2), ""}).error().code() == Errc::kUnavailable);
  CHECK(target->expose(request).error().code() == Errc::kUnavailable);
  CHECK(target->fence(SessionId(1), {0, 1}).error().code() == Errc::kUnavailable);
  CHECK(target->revoke(exposed->id).ok());
  CHECK(target->progress() == 0);
  CHECK(target->arm());
  target->shut();
}

TEST_CASE("ucx: a fence gives its rail another address once, and none after the session") {
  const auto target = make_target_anywhere();
  if (target == nullptr) return;
  const auto first = target->admit({SessionId(1), ""});
  const auto other = target->admit({SessionId(2), ""});
  REQUIRE((first.ok() && other.ok()));
  CHECK(*first != *other);
  const auto fenced = target->fence(SessionId(1), {0, 7});
  REQUIRE(fenced.ok());
  CHECK(*fenced != *first);
  // Asked again, or late, what has come since stays.
  for (const std::uint32_t generation : {7U, 3U}) {
    const auto again = target->fence(SessionId(1), {0, generation});
    REQUIRE(again.ok());
    CHECK(*again == *fenced);
  }
  CHECK(target->fence(SessionId(1), {1, 8}).error().code() == Errc::kNotFound);
  CHECK(target->fence(SessionId(3), {0, 1}).error().code() == Errc::kNotFound);
  const auto segment = bench::Segment::create(64 * kKiB);
  REQUIRE(segment.ok());
  const auto exposed =
      target->expose({(*segment)->bytes(), Rights::kReadWrite, (*segment)->fd(), SessionId(1)});
  REQUIRE(exposed.ok());
  target->dismiss(SessionId(1));
  CHECK(target->fence(SessionId(1), {0, 9}).error().code() == Errc::kNotFound);
  CHECK(target->revoke(exposed->id).ok());
  CHECK(target->revoke(exposed->id).error().code() == Errc::kNotFound);
  // The other session is as it was, and so is a new one of the same number.
  CHECK(target->fence(SessionId(2), {0, 1}).ok());
  CHECK(target->admit({SessionId(1), ""}).ok());
}

TEST_CASE("ucx: many sessions wake and sleep, and take nothing with them") {
  const auto target = make_target_anywhere();
  if (target == nullptr) return;
  constexpr std::uint64_t kSessions = 40;
  const auto descriptors = [] {
    const std::filesystem::directory_iterator folder("/proc/self/fd");
    return std::distance(begin(folder), end(folder));
  };
  const auto before = descriptors();
  for (int round = 0; round < 2; ++round) {
    for (std::uint64_t i = 1; i <= kSessions; ++i) REQUIRE(target->admit({SessionId(i), ""}).ok());
    CHECK_FALSE(target->arm());  // all are new, and may have work
    const auto limit = std::chrono::steady_clock::now() + 20s;
    while (!target->arm() && std::chrono::steady_clock::now() < limit) (void)target->progress();
    CHECK(target->arm());
    CHECK(target->progress() == 0);
    for (std::uint64_t i = 1; i <= kSessions; ++i) target->dismiss(SessionId(i));
    CHECK(target->arm());
    CHECK(descriptors() == before);
  }
}

}  // namespace
}  // namespace ho::test
