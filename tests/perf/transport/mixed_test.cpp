// Small transfers beside large ones over the tcp driver.
#include <algorithm>
#include <catch2/catch.hpp>
#include <iostream>
#include <vector>

#include "common/base/units.hpp"
#include "common/transport/tcp/tcp_transport.hpp"
#include "tools/bench/target_process.hpp"
#include "tools/bench/turns.hpp"

namespace ho::bench {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kLargeBytes = 64 * kMiB;
constexpr std::uint64_t kSmallBytes = 4 * kKiB;
constexpr std::uint64_t kLargeOps = 2;

struct Mixed {
  double large_ms = 0;  ///< median time of the puts, two in flight
  double small_us = 0;  ///< median time of the gets, one in flight
  double small_p99_us = 0;
  double bytes_per_s = 0;  ///< rate of the puts
};

/// Runs gets of 4 KiB, one after the other, while two puts of 64 MiB are always in flight.
Mixed measure(bool with_large) {
  const SteadyClock clock;
  const TimePoint far = clock.now() + 60s;
  auto target = TargetProcess::start({Driver::kTcp});
  REQUIRE(target.ok());
  auto segment = Segment::create(kLargeOps * kLargeBytes + kMiB);
  REQUIRE(segment.ok());
  const auto exposed = (*target)->expose(**segment, transport::Rights::kReadWrite);
  REQUIRE(exposed.ok());
  auto initiator = transport::make_tcp_transport({}, clock);
  REQUIRE(initiator.ok());
  transport::Transport& tcp = **initiator;
  const auto peer = tcp.connect((*target)->peer(), far);
  REQUIRE(peer.ok());
  transport::RegionGrant grant;
  grant.key = exposed->key;
  grant.length_bytes = (*segment)->bytes().size();
  const auto region = tcp.attach(*peer, std::move(grant));
  REQUIRE(region.ok());
  std::vector<std::byte> memory(kLargeOps * kLargeBytes + kSmallBytes, std::byte{3});
  const auto local = tcp.register_memory(memory);
  REQUIRE(local.ok());
  const std::span<std::byte> bytes(memory);
  std::vector<TimePoint> begun(kLargeOps + 1);
  const auto start = [&](std::uint64_t op) {
    begun[op] = clock.now();
    const std::uint64_t at = op * kLargeBytes;
    if (op == kLargeOps) {
      return tcp.submit(transport::MemoryOp{transport::Direction::kGet, OpId(op),
                                            bytes.subspan(at, kSmallBytes), *local, *region, at,
                                            far});
    }
    return tcp.submit(transport::MemoryOp{transport::Direction::kPut, OpId(op),
                                          bytes.subspan(at, kLargeBytes), *local, *region, at,
                                          far});
  };
  for (std::uint64_t op = with_large ? 0 : kLargeOps; op <= kLargeOps; ++op)
    REQUIRE(start(op).ok());
  std::vector<double> large;
  std::vector<double> small;
  const TimePoint begin = clock.now();
  while (clock.now() < begin + 3s) {
    Completion some[8];
    const std::size_t got = tcp.poll(some);
    for (std::size_t i = 0; i < got; ++i) {
      REQUIRE(some[i].code == Errc::kOk);
      const std::uint64_t op = some[i].op.value();
      const double took_us = static_cast<double>((clock.now() - begun[op]).count()) / 1e3;
      (op == kLargeOps ? small : large).push_back(took_us);
      REQUIRE(start(op).ok());
    }
  }
  Mixed result;
  result.large_ms = quantile(large, 0.5) / 1e3;
  result.small_us = quantile(small, 0.5);
  result.small_p99_us = quantile(small, 0.99);
  result.bytes_per_s = static_cast<double>(large.size() * kLargeBytes) / 3;
  return result;
}

TEST_CASE("transport: a small get over tcp does not wait behind large puts") {
  const Mixed alone = measure(false);
  const Mixed mixed = measure(true);
  std::cout << "4 KiB get alone: p50 " << alone.small_us << " us, p99 " << alone.small_p99_us
            << " us; beside 2 x 64 MiB puts (" << mixed.bytes_per_s / 1e9 << " GB/s, "
            << mixed.large_ms << " ms each): p50 " << mixed.small_us << " us, p99 "
            << mixed.small_p99_us << " us\n";
  REQUIRE(mixed.small_us * 8 <= mixed.large_ms * 1e3);
}

}  // namespace
}  // namespace ho::bench
