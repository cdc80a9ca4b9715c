// Special to the ofi driver: it faces a network, so its target meets liars and rubbish.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <set>
#include <thread>
#include <vector>

#include "common/base/checksum.hpp"
#include "common/base/prng.hpp"
#include "common/system/unique_fd.hpp"
#include "common/transport/ofi/ofi_transport.hpp"
#include "common/transport/ofi/wire.hpp"
#include "tests/conformance/transport/rail_sockets.hpp"
#include "tests/conformance/transport/rig.hpp"
#include "tests/support/skip.hpp"
#include "tools/bench/target_process.hpp"

namespace ho::test {
namespace {

using namespace std::chrono_literals;
using transport::Rights;

/// Attaches with a doctored key and tries an access. @return how it ended.
Errc try_access(Rig& rig, Bench& bench, const transport::RemoteKey& key, std::uint64_t offset,
                bool write) {
  const auto initiator = rig.make_initiator(0);
  const auto peer = initiator->connect(rig.peer(bench.target), in(rig, 20s));
  REQUIRE(peer.ok());
  transport::RegionGrant grant;
  grant.key = transport::encode_key(key);
  grant.length_bytes = key.length_bytes;
  grant.rights = key.rights;
  const auto region = initiator->attach(*peer, std::move(grant));
  if (!region) return region.error().code();
  std::vector<std::byte> memory(4096, std::byte{0xEE});
  const auto local = initiator->register_memory(memory);
  REQUIRE(local.ok());
  const auto direction = write ? transport::Direction::kPut : transport::Direction::kGet;
  const auto submitted =
      initiator->submit({direction, OpId(1), memory, *local, *region, offset, in(rig, 2s)});
  if (!submitted) return submitted.error().code();
  return collect(rig, *initiator, 1)[0].code;
}

bool refused(Errc code) { return code == Errc::kPermissionDenied || code == Errc::kUnavailable; }

/// Whether the environment names a device's provider, as the lab does.
bool verbs_here() {
  const char* const named = std::getenv("HO_OFI_PROVIDER");
  if (named != nullptr && std::string(named) == "verbs") return true;
  skip("needs an RDMA device and HO_OFI_PROVIDER=verbs, as in tools/lab/suite");
  return false;
}

bench::TargetProcess::Options on_device() {
  return {bench::Driver::kOfi, 1, "verbs", std::getenv("HO_OFI_ADDRESS")};
}

TEST_CASE(
    "ofi: over verbs, where libfabric's queue does not fit in the device the error says a way "
    "out") {
  if (!verbs_here()) return;
  const std::string fits = std::getenv("FI_UNIVERSE_SIZE");
  REQUIRE(::unsetenv("FI_UNIVERSE_SIZE") == 0);
  const auto target = bench::TargetProcess::start(on_device());
  REQUIRE(::setenv("FI_UNIVERSE_SIZE", fits.c_str(), 1) == 0);
  REQUIRE_FALSE(target.ok());
  INFO(target.error().message());
  CHECK(target.error().context().find("FI_UNIVERSE_SIZE=16") != std::string::npos);
}

TEST_CASE("ofi: over verbs nothing is served where libfabric caches registrations") {
  if (!verbs_here()) return;
  // No target has such a cache, or it would not have come up; this process has, as initiators do.
  const auto rig = make_rig("ofi");
  const Bench bench(*rig, kMiB, 4096);
  transport::OfiTargetOptions options;
  options.provider = "verbs";
  options.rails[0].address = on_device().ofi_address;
  const auto here = transport::make_ofi_target(options);
  REQUIRE_FALSE(here.ok());
  INFO(here.error().message());
  CHECK(here.error().code() == Errc::kUnsupported);
  CHECK(here.error().context().find("cache") != std::string::npos);
}

TEST_CASE("ofi: the target refuses a range beyond the region, whatever the initiator believes") {
  const auto rig = make_rig("ofi");
  Bench bench(*rig, kMiB, 4096);
  fill(bench.exposed.truth, 72);
  const std::uint64_t before = checksum64(bench.exposed.truth);
  auto key = transport::decode_key(bench.exposed.key);
  REQUIRE(key.ok());
  key->length_bytes = 16 * kMiB;
  for (const bool write : {false, true}) {
    for (const std::uint64_t offset : {kMiB - 4095, std::uint64_t{kMiB}, 15 * kMiB}) {
      INFO((write ? "put at " : "get at ") << offset);
      REQUIRE(refused(try_access(*rig, bench, *key, offset, write)));
    }
  }
  REQUIRE(rig->alive(bench.target));
  REQUIRE(checksum64(bench.exposed.truth) == before);
  check_serves(*rig, bench.target);
}

TEST_CASE("ofi: the target refuses writes to a read-only region, whatever the initiator believes") {
  const auto rig = make_rig("ofi");
  Bench bench(*rig, kMiB, 4096, 0, Rights::kRead);
  fill(bench.exposed.truth, 73);
  const std::uint64_t before = checksum64(bench.exposed.truth);
  auto key = transport::decode_key(bench.exposed.key);
  REQUIRE(key.ok());
  key->rights = Rights::kReadWrite;
  REQUIRE(refused(try_access(*rig, bench, *key, 0, true)));
  REQUIRE(checksum64(bench.exposed.truth) == before);
  REQUIRE(rig->alive(bench.target));
  check_serves(*rig, bench.target);
}

TEST_CASE("ofi: guessed keys open nothing") {
  const auto rig = make_rig("ofi");
  Bench bench(*rig, kMiB, 4096);
  auto key = transport::decode_key(bench.exposed.key);
  REQUIRE(key.ok());
  Prng prng(74);
  const std::uint64_t right = key->key;
  for (const std::uint64_t guess : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{42},
                                    right + 1, right ^ (std::uint64_t{1} << 63U), prng.next()}) {
    INFO("key " << guess);
    key->key = guess;
    REQUIRE(refused(try_access(*rig, bench, *key, 0, false)));
  }
  check_serves(*rig, bench.target);
}

TEST_CASE("ofi: time in which nobody polled does not count, but never past the lease") {
  for (const bool lease_ended : {false, true}) {
    INFO((lease_ended ? "the lease has ended" : "the lease goes on"));
    const auto rig = make_rig("ofi");
    Bench bench(*rig, kMiB, 4096);
    auto request = transport::MemoryOp{transport::Direction::kGet,
                                       OpId(1),
                                       bench.memory(),
                                       bench.local,
                                       bench.region,
                                       0,
                                       in(*rig, 300ms)};
    request.not_after = in(*rig, lease_ended ? 400ms : 60s);
    REQUIRE(bench.initiator->submit(request).ok());
    std::this_thread::sleep_for(600ms);
    const Completion done = collect(*rig, *bench.initiator, 1)[0];
    REQUIRE(done.code == (lease_ended ? Errc::kDeadline : Errc::kOk));
  }
}

TEST_CASE("ofi: keys and addresses read back what was written, and rubbish is refused") {
  const transport::RemoteKey key{0xFEDCBA9876543210U, 4096, kMiB, Rights::kRead};
  const auto read = transport::decode_key(transport::encode_key(key));
  REQUIRE(read.ok());
  REQUIRE(read->key == key.key);
  REQUIRE(read->base == key.base);
  REQUIRE(read->length_bytes == key.length_bytes);
  REQUIRE(read->rights == key.rights);
  const transport::OfiAddress address{"tcp;ofi_rxm", 1, std::string("\0\xFF/x", 4), key};
  const auto reached = transport::decode_address(transport::encode_address(address));
  REQUIRE(reached.ok());
  REQUIRE(reached->provider == address.provider);
  REQUIRE(reached->name == address.name);
  REQUIRE(reached->hello.key == key.key);
  for (const char* text : {"", "1", "1/2/3", "1/2/3/4/5", "x/0/1/1", "1/0/0/1", "1/0/1/2",
                           "1/ffffffffffffffff/2/1", "10000000000000000/0/1/1", "-1/0/1/1"}) {
    INFO(text);
    REQUIRE_FALSE(transport::decode_key(text).ok());
  }
  Prng prng(76);
  for (int i = 0; i < 2000; ++i) {
    std::string text = transport::encode_address(address);
    text[prng.below(text.size())] = static_cast<char>(prng.next());
    (void)transport::decode_address(text);  // must not fault; ASan watches
    text.resize(prng.below(text.size()));
    REQUIRE_FALSE(
        transport::decode_address(
            text.substr(0, text.rfind('/') == std::string::npos ? text.size() : text.rfind('/')))
            .ok());
  }
}

TEST_CASE("ofi: the keys and addresses of several rails read back, one key where all are alike") {
  const transport::RemoteKey key{17, 0, kMiB, Rights::kReadWrite};
  transport::RemoteKey other = key;
  other.key = 18;
  CHECK(transport::encode_keys(std::vector{key, key}) == transport::encode_key(key));
  const auto alike = transport::decode_keys(transport::encode_key(key), 3);
  REQUIRE(alike.ok());
  CHECK(*alike == std::vector{key, key, key});
  const std::string two = transport::encode_keys(std::vector{key, other});
  const auto apart = transport::decode_keys(two, 2);
  REQUIRE(apart.ok());
  CHECK(*apart == std::vector{key, other});
  CHECK_FALSE(transport::decode_keys(two, 3).ok());
  CHECK_FALSE(transport::decode_keys(two + ",", 2).ok());
  CHECK_FALSE(transport::decode_keys("", 1).ok());
  const transport::OfiAddress address{"net", 2, "abcdefgh", key};
  std::vector<transport::OfiAddress> rails(transport::kRailsMax, address);
  for (std::size_t i = 0; i < rails.size(); ++i) rails[i].name += static_cast<char>('a' + i);
  const auto read = transport::decode_addresses(transport::encode_addresses(rails));
  REQUIRE(read.ok());
  REQUIRE(read->size() == transport::kRailsMax);
  CHECK((*read)[1].name == "abcdefghb");
  const std::string one = transport::encode_address(address);
  CHECK(transport::encode_addresses(std::vector{address}) == one);
  for (const std::string& text :
       {std::string(), one + ",", "," + one, one + ",,", one + ";" + one, one + "," + one,
        transport::encode_addresses(rails) + "," + one}) {
    INFO(text);
    CHECK_FALSE(transport::decode_addresses(text).ok());
  }
}

TEST_CASE("ofi: large operations are spread over several connections, and end with any of them") {
  const auto rig = make_rig("ofi");
  const std::size_t target = rig->add_target();
  const Exposed exposed = rig->expose(target, 32 * kMiB, Rights::kReadWrite);
  transport::OfiOptions options;
  options.connections = 3;
  options.allow_emulation = true;
  const auto initiator = transport::make_ofi_transport(options, rig->clock());
  REQUIRE(initiator.ok());
  const auto peer = (*initiator)->connect(rig->peer(target), in(*rig, 10s));
  if (!peer) FAIL(peer.error().message());
  const auto region = (*initiator)->attach(*peer, rig->grant(exposed));
  REQUIRE(region.ok());
  std::vector<std::byte> memory(64 * kMiB);
  const auto local = (*initiator)->register_memory(memory);
  REQUIRE(local.ok());
  const std::span<std::byte> sent = std::span(memory).first(32 * kMiB);
  const std::span<std::byte> back = std::span(memory).last(32 * kMiB);
  fill(sent, 82);
  const TimePoint deadline = in(*rig, 20s);
  REQUIRE((*initiator)
              ->submit(transport::MemoryOp{transport::Direction::kPut, OpId(1), sent, *local,
                                           *region, 0, deadline})
              .ok());
  REQUIRE(collect(*rig, **initiator, 1)[0].code == Errc::kOk);
  CHECK(std::memcmp(exposed.truth.data(), sent.data(), sent.size()) == 0);
  const transport::MemoryOp get{
      transport::Direction::kGet, OpId(2), back, *local, *region, 0, deadline};
  REQUIRE((*initiator)->submit(get).ok());
  REQUIRE(collect(*rig, **initiator, 1)[0].code == Errc::kOk);
  CHECK(std::memcmp(back.data(), sent.data(), sent.size()) == 0);
  // The target's death ends the connections one by one, and the operation once.
  REQUIRE((*initiator)->submit(get).ok());
  rig->kill(target);
  REQUIRE(collect(*rig, **initiator, 1)[0].code == Errc::kUnavailable);
  CHECK((*initiator)->submit(get).error().code() == Errc::kUnavailable);
  options.connections = 17;
  CHECK_FALSE(transport::make_ofi_transport(options, rig->clock()).ok());
}

TEST_CASE("ofi: a domain and a source address are kept to, and others are named") {
  const SteadyClock clock;
  transport::OfiTargetOptions served;
  served.allow_emulation = true;
  served.rails[0] = {"lo", "127.0.0.1"};
  const auto target = transport::make_ofi_target(served);
  if (!target) FAIL(target.error().message());
  const auto address = (*target)->admit({SessionId(1), ""});
  REQUIRE(address.ok());
  std::atomic<bool> stop{false};
  std::thread server([&] {
    while (!stop.load()) (void)(*target)->progress();
  });
  const auto reach = [&](const transport::OfiOptions& options) -> Result<void> {
    const auto initiator = transport::make_ofi_transport(options, clock);
    if (!initiator) return initiator.error();
    const auto peer = (*initiator)->connect({NodeId(1), *address}, clock.now() + 10s);
    return peer ? Result<void>() : peer.error();
  };
  transport::OfiOptions options;
  options.allow_emulation = true;
  options.domain = "lo";
  options.source_address = "127.0.0.1";
  const auto reached = reach(options);
  options.source_address = "::1";
  const auto other_kind = reach(options);
  options.source_address.clear();
  options.domain = "nonesuch0";
  const auto nowhere = reach(options);
  stop.store(true);
  server.join();
  if (!reached) FAIL(reached.error().message());
  REQUIRE_FALSE(other_kind.ok());
  CHECK(other_kind.error().code() == Errc::kInvalidArgument);
  REQUIRE_FALSE(nowhere.ok());
  CHECK(nowhere.error().context().find("has no domain 'nonesuch0'") != std::string::npos);
  served.rails[0].domain = "nonesuch0";
  const auto absent = transport::make_ofi_target(served);
  REQUIRE_FALSE(absent.ok());
  CHECK(absent.error().code() == Errc::kUnsupported);
}

TEST_CASE("ofi: errors about missing providers and devices name those that are there") {
  CHECK(transport::check_ofi_provider("", true).ok());
  CHECK(transport::check_ofi_provider("net", false).error().code() == Errc::kUnsupported);
  const auto provider = transport::check_ofi_provider("nonesuch", true);
  REQUIRE_FALSE(provider.ok());
  CHECK(provider.error().context().find(*transport::libfabric_tcp()) != std::string::npos);
  CHECK(transport::check_ofi_domain("", true, "lo").ok());
  const auto domain = transport::check_ofi_domain("", true, "nonesuch0");
  REQUIRE_FALSE(domain.ok());
  CHECK(domain.error().context().find("it has") != std::string::npos);
}

TEST_CASE("ofi: a lost rail ends its peer, since no target of it ends one") {
  const auto rig = make_rig("ofi");
  Bench bench(*rig, kMiB, kMiB);
  REQUIRE(break_rail(kFirstRail));
  REQUIRE(bench.put(1, {0, 0, 4096}).ok());
  CHECK(collect(*rig, *bench.initiator, 1)[0].code == Errc::kUnavailable);
  CHECK(bench.get(2, {0, 0, 64}).error().code() == Errc::kUnavailable);
  check_serves(*rig, bench.target);
}

}  // namespace
}  // namespace ho::test
