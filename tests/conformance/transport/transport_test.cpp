// What every driver promises while nothing fails, and how it refuses bad requests.
#include <catch2/catch.hpp>
#include <cstring>
#include <limits>
#include <set>

#include "common/base/prng.hpp"
#include "tests/conformance/transport/rig.hpp"

namespace ho::test {
namespace {

using transport::Rights;

#define HO_ANY_DRIVER()                                                                \
  const std::string driver =                                                           \
      GENERATE(from_range(drivers({"local", "tcp", "ofi", "ucx", "ucx-tcp", "sim"}))); \
  INFO("driver " << driver);                                                           \
  const std::unique_ptr<Rig> rig = make_rig(driver)

bool equal(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

TEST_CASE(
    "transport: every size from 1 B to 64 MiB arrives whole at odd offsets, and no byte more") {
  HO_ANY_DRIVER();
  constexpr std::uint64_t kMargin = 128;
  const std::vector<std::uint64_t> sizes = {
      1,        2,    3,    7,     8,     63,       64,   65,       255,
      4095,     4096, 4097, 65536, 65537, kMiB - 1, kMiB, kMiB + 3, 5 * kMiB + 13,
      64 * kMiB};
  Bench bench(*rig, 64 * kMiB + 4096, 64 * kMiB + 2 * kMargin);
  std::uint64_t op = 0;
  for (const std::uint64_t size : sizes) {
    INFO("size " << size);
    const std::uint64_t local = kMargin / 2 + size % 61;
    const std::uint64_t remote = kMargin + size % 59;
    const auto mine = bench.memory().subspan(local, size);
    const auto theirs = bench.exposed.truth.subspan(remote, size);
    const auto check = [&](std::span<const std::byte> around, std::byte margin) {
      // The neighbours on both sides of what was written.
      for (std::size_t i = 0; i < 32; ++i) {
        if (*(around.data() - 1 - i) != margin) return false;
        if (*(around.data() + around.size() + i) != margin) return false;
      }
      return true;
    };
    fill(theirs, ++op);
    std::memset(mine.data() - 32, 0x5A, size + 64);
    REQUIRE(bench.get(op, {local, remote, size}).ok());
    auto done = collect(*rig, *bench.initiator, 1);
    REQUIRE(done[0].code == Errc::kOk);
    REQUIRE(done[0].op == OpId(op));
    REQUIRE(done[0].moved_bytes == size);
    REQUIRE(equal(mine, theirs));
    REQUIRE(check(mine, std::byte{0x5A}));

    fill(mine, ++op);
    std::memset(theirs.data() - 32, 0xA5, size + 64);
    REQUIRE(bench.put(op, {local, remote, size}).ok());
    done = collect(*rig, *bench.initiator, 1);
    REQUIRE(done[0].code == Errc::kOk);
    REQUIRE(done[0].moved_bytes == size);
    REQUIRE(equal(mine, theirs));
    REQUIRE(check(theirs, std::byte{0xA5}));
  }
}

TEST_CASE("transport: thousands of queued operations complete once each, with the right bytes") {
  HO_ANY_DRIVER();
  constexpr std::uint64_t kPlace = 4096;
  constexpr std::uint64_t kOps = 6000;
  constexpr std::uint64_t kPlaces = kOps / 2;
  Bench bench(*rig, kPlaces * kPlace, kOps * kPlace);
  fill(bench.exposed.truth, 7);
  fill(bench.memory(), 8);
  const std::vector<std::byte> before(bench.exposed.truth.begin(), bench.exposed.truth.end());
  const std::vector<std::byte> sent(bench.memory().begin(), bench.memory().end());
  // Even operations get the first half of a place, odd ones put into its second half.
  std::set<std::uint64_t> seen;
  std::uint64_t next = 0;
  std::uint64_t busy = 0;
  while (seen.size() < kOps) {
    while (next < kOps) {
      const std::uint64_t place = next / 2;
      const std::uint64_t length = 1 + next % (kPlace / 2);
      const auto started =
          next % 2 == 0 ? bench.get(next, {next * kPlace, place * kPlace, length})
                        : bench.put(next, {next * kPlace, place * kPlace + kPlace / 2, length});
      if (!started) {
        REQUIRE(started.error().code() == Errc::kBusy);
        ++busy;
        break;
      }
      ++next;
    }
    const auto done = collect(*rig, *bench.initiator, 1);
    for (const Completion& completion : done) {
      REQUIRE(completion.code == Errc::kOk);
      REQUIRE(seen.insert(completion.op.value()).second);
    }
  }
  REQUIRE(busy > 0);
  for (std::uint64_t i = 0; i < kOps; ++i) {
    const std::uint64_t length = 1 + i % (kPlace / 2);
    const std::uint64_t at = i / 2 * kPlace;
    const bool right = i % 2 == 0 ? std::memcmp(bench.memory().data() + i * kPlace,
                                                before.data() + at, length) == 0
                                  : std::memcmp(bench.exposed.truth.data() + at + kPlace / 2,
                                                sent.data() + i * kPlace, length) == 0;
    if (!right) FAIL("operation " << i << " moved wrong bytes");
  }
}

TEST_CASE("transport: a full queue answers kBusy, starts nothing, and takes more after poll") {
  HO_ANY_DRIVER();
  constexpr std::uint32_t kDepth = 32;
  Bench bench(*rig, kMiB, kDepth * 8 * kKiB + 8 * kKiB, kDepth);
  REQUIRE(bench.initiator->caps().depth_ops_max == kDepth);
  for (std::uint64_t round = 0; round < 3; ++round) {
    for (std::uint64_t i = 0; i < kDepth; ++i) {
      REQUIRE(bench.get(i, {i * 8 * kKiB, i * 8 * kKiB, 8 * kKiB}).ok());
    }
    const auto refused = bench.get(99, {0, 0, 8});
    REQUIRE_FALSE(refused.ok());
    REQUIRE(refused.error().code() == Errc::kBusy);
    const auto done = collect(*rig, *bench.initiator, kDepth);
    std::set<std::uint64_t> seen;
    for (const Completion& completion : done) seen.insert(completion.op.value());
    REQUIRE(seen.size() == kDepth);
    REQUIRE(seen.count(99) == 0);
    Completion none[1];
    REQUIRE(bench.initiator->poll(none) == 0);
  }
}

TEST_CASE("transport: completions come one by one where poll is given little room") {
  HO_ANY_DRIVER();
  Bench bench(*rig, kMiB, kMiB);
  for (std::uint64_t i = 0; i < 10; ++i) REQUIRE(bench.get(i, {i * 64, i * 64, 64}).ok());
  std::set<std::uint64_t> seen;
  for (int turn = 0; turn < 1'000'000 && seen.size() < 10; ++turn) {
    Completion one[1];
    REQUIRE(bench.initiator->poll({}) == 0);
    if (bench.initiator->poll(one) == 1) {
      seen.insert(one[0].op.value());
    } else {
      rig->idle(*bench.initiator);
    }
  }
  REQUIRE(seen.size() == 10);
}

TEST_CASE("transport: an access outside of the region is refused, overflow included") {
  HO_ANY_DRIVER();
  Bench bench(*rig, kMiB, kMiB);
  const auto code = [](const Result<void>& result) {
    return result ? Errc::kOk : result.error().code();
  };
  REQUIRE(code(bench.get(1, {0, kMiB, 1})) == Errc::kOutOfRange);
  REQUIRE(code(bench.get(1, {0, kMiB - 7, 8})) == Errc::kOutOfRange);
  REQUIRE(code(bench.put(1, {0, 1, kMiB})) == Errc::kOutOfRange);
  constexpr std::uint64_t kLast = std::numeric_limits<std::uint64_t>::max();
  REQUIRE(code(bench.get(1, {0, kLast, 1})) == Errc::kOutOfRange);
  REQUIRE(code(bench.put(1, {0, kLast - 7, 64})) == Errc::kOutOfRange);
  REQUIRE(code(bench.get(1, {0, 0, 0})) == Errc::kInvalidArgument);
  Completion none[1];
  REQUIRE(bench.initiator->poll(none) == 0);
  REQUIRE(bench.get(2, {0, kMiB - 8, 8}).ok());
  REQUIRE(collect(*rig, *bench.initiator, 1)[0].code == Errc::kOk);
}

TEST_CASE("transport: unknown regions and memory outside of the registered are refused") {
  HO_ANY_DRIVER();
  Bench bench(*rig, kMiB, kMiB);
  std::vector<std::byte> elsewhere(64);
  const TimePoint deadline = in(*rig, std::chrono::seconds(5));
  const auto code = [](const Result<void>& result) {
    return result ? Errc::kOk : result.error().code();
  };
  auto& initiator = *bench.initiator;
  REQUIRE(code(initiator.submit(transport::MemoryOp{
              transport::Direction::kGet, OpId(1), bench.memory().first(8), bench.local,
              transport::RegionId(4711), 0, deadline})) == Errc::kNotFound);
  REQUIRE(code(initiator.submit(transport::MemoryOp{transport::Direction::kGet, OpId(1), elsewhere,
                                                    bench.local, bench.region, 0, deadline})) ==
          Errc::kInvalidArgument);
  REQUIRE(code(initiator.submit(transport::MemoryOp{
              transport::Direction::kPut, OpId(1), bench.memory().first(8),
              transport::LocalId(4711), bench.region, 0, deadline})) == Errc::kInvalidArgument);
  initiator.detach(bench.region);
  REQUIRE(code(bench.get(1, {0, 0, 8})) == Errc::kNotFound);
  initiator.unregister_memory(bench.local);
}

TEST_CASE("transport: a read-only region can be read and not written") {
  HO_ANY_DRIVER();
  Bench bench(*rig, kMiB, kMiB, 0, Rights::kRead);
  fill(bench.exposed.truth, 3);
  const auto refused = bench.put(1, {0, 0, 4096});
  REQUIRE_FALSE(refused.ok());
  REQUIRE(refused.error().code() == Errc::kPermissionDenied);
  REQUIRE(bench.get(2, {0, 0, kMiB}).ok());
  REQUIRE(collect(*rig, *bench.initiator, 1)[0].code == Errc::kOk);
  REQUIRE(equal(bench.memory(), bench.exposed.truth));
}

TEST_CASE("transport: addresses of another kind are refused") {
  HO_ANY_DRIVER();
  const auto initiator = rig->make_initiator(0);
  for (const char* address : {"", "nonsense", "tcp;ofi_rxm/1/zz/0/0", "////", "a/b/c/d/e/f"}) {
    INFO(address);
    const auto connected =
        initiator->connect({NodeId(1), address}, in(*rig, std::chrono::seconds(1)));
    REQUIRE_FALSE(connected.ok());
    const Errc code = connected.error().code();
    REQUIRE((code == Errc::kInvalidArgument || code == Errc::kUnavailable));
  }
}

TEST_CASE("transport: a small get passes a large put that was submitted before it") {
  const std::string driver = GENERATE(from_range(drivers({"tcp", "ofi", "ucx"})));
  INFO("driver " << driver);
  const auto rig = make_rig(driver);
  Bench bench(*rig, 128 * kMiB, 65 * kMiB);
  fill(bench.exposed.truth.subspan(100 * kMiB, 4096), 81);
  for (std::uint64_t round = 0; round < 3; ++round) {
    REQUIRE(bench.put(1, {0, 0, 64 * kMiB}).ok());
    REQUIRE(bench.get(2, {64 * kMiB, 100 * kMiB, 4096}).ok());
    const auto done = collect(*rig, *bench.initiator, 2);
    CHECK(done[0].op == OpId(2));
    CHECK(done[0].code == Errc::kOk);
    CHECK(done[1].code == Errc::kOk);
    CHECK(std::memcmp(bench.memory().data() + 64 * kMiB, bench.exposed.truth.data() + 100 * kMiB,
                      4096) == 0);
  }
}

}  // namespace
}  // namespace ho::test
