#include "daemon/pool/numa_shares.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <optional>
#include <string>
#include <utility>

#include "common/base/prng.hpp"
#include "common/base/units.hpp"
#include "daemon/pool/pool.hpp"

namespace ho::daemon {
namespace {

constexpr std::uint64_t kSegment = 2 * kMiB;

NumaMemory memory(std::uint32_t node, std::uint64_t bytes) { return {NumaNode(node), bytes, 0}; }

NumaRequest request(std::uint64_t segments, std::vector<NumaNode> nodes = {}) {
  NumaRequest out;
  out.capacity_bytes = segments * kSegment;
  out.segment_bytes = kSegment;
  out.nodes = std::move(nodes);
  return out;
}

/// "0:5 1:3": segments by node.
std::string divided(const NumaRequest& asked, const std::vector<NumaMemory>& machine) {
  const auto shares = divide_over_numa(asked, machine);
  if (!shares) return shares.error().context();
  std::string out;
  for (const NumaShare& share : *shares) {
    CHECK(share.granted_bytes == 0);
    out += (out.empty() ? "" : " ") + std::to_string(share.node.value()) + ":" +
           std::to_string(share.capacity_bytes / kSegment);
  }
  return out;
}

}  // namespace

TEST_CASE("numa shares: a pool is divided by the memory of the nodes, to the last segment") {
  CHECK(divided(request(8), {memory(0, kGiB), memory(1, kGiB)}) == "0:4 1:4");
  CHECK(divided(request(8), {memory(0, 3 * kGiB), memory(2, kGiB)}) == "0:6 2:2");
  CHECK(divided(request(1), {memory(0, kGiB), memory(1, 2 * kGiB)}) == "1:1");
  CHECK(divided(request(7), {memory(0, kGiB), memory(1, kGiB), memory(2, kGiB)}) == "0:2 1:3 2:2");
  // The upper limits of both.
  constexpr std::uint64_t kPiB = 1024 * 1024 * kGiB;
  CHECK(divided(request(kPiB / kSegment), {memory(0, kPiB), memory(1, kPiB)}) ==
        "0:268435456 1:268435456");
}

TEST_CASE("numa shares: there are none with one node or unknown nodes") {
  CHECK(divided(request(8), {}).empty());
  CHECK(divided(request(8), {memory(0, kGiB)}).empty());
  CHECK(divided(request(8, {NumaNode(0)}), {memory(0, kGiB)}).empty());
}

TEST_CASE("numa shares: named nodes are the only ones, and must have enough memory") {
  const std::vector<NumaMemory> machine = {memory(0, 16 * kMiB), memory(1, 16 * kMiB)};
  CHECK(divided(request(8, {NumaNode(1)}), machine) == "1:8");
  CHECK(divided(request(9, {NumaNode(1)}), machine) ==
        "ddr_bytes promises 18.0 MiB, but nodes 1 have 16.0 MiB of memory");
  CHECK(divided(request(8, {NumaNode(1), NumaNode(3)}), machine) ==
        "node 3 has no memory for this process; nodes with memory: 0, 1");
  CHECK(divided(request(8, {NumaNode(0)}), {}) ==
        "node 0 has no memory for this process; nodes with memory: none");
}

TEST_CASE("numa shares: memory without processors is used if named, or if nothing else suffices") {
  std::vector<NumaMemory> machine = {memory(0, 16 * kMiB), memory(1, 16 * kMiB)};
  machine[1].has_cpus = false;
  CHECK(divided(request(8), machine) == "0:8");
  CHECK(divided(request(9), machine) == "0:5 1:4");
  CHECK(divided(request(2, {NumaNode(1)}), machine) == "1:2");
  machine[0].has_cpus = false;
  CHECK(divided(request(8), machine) == "0:4 1:4");
}

TEST_CASE("numa shares: the preferred node comes first, then the one with the most room") {
  std::vector<NumaShare> shares = {{NumaNode(0), 3 * kSegment, 0}, {NumaNode(1), 2 * kSegment, 0}};
  const auto take = [&](std::optional<NumaNode> near) {
    NumaShare* const share = choose_share(shares, near);
    REQUIRE(share != nullptr);
    share->granted_bytes += kSegment;
    REQUIRE(share->granted_bytes <= share->capacity_bytes);
    return share->node.value();
  };
  CHECK(take(NumaNode(1)) == 1);
  CHECK(take(NumaNode(1)) == 1);
  CHECK(take(NumaNode(1)) == 0);  // full
  CHECK(take({}) == 0);
  CHECK(take(NumaNode(9)) == 0);  // no such share
  CHECK(choose_share({}, NumaNode(0)) == nullptr);
}

TEST_CASE("numa shares: no share is exceeded, whatever is granted and released") {
  Prng random(7);
  Pool::Options options;
  options.node_name = "n";
  options.capacity_bytes = 8 * kSegment;
  options.segment_bytes = kSegment;
  options.lease = std::chrono::seconds(1);
  options.numa = {{NumaNode(0), 5 * kSegment, 0}, {NumaNode(4), 3 * kSegment, 0}};
  Pool pool(options, TimePoint{});
  SessionSpec spec;
  spec.token = "0123456789abcdef";
  const SessionId session = *pool.open_session(spec, TimePoint{});
  std::vector<SegmentId> held;
  std::size_t near_count = 0;
  for (int round = 0; round < 2000; ++round) {
    if (random.next() % 2 == 0) {
      const NumaNode near(random.next() % 2 == 0 ? 0 : 4);
      const NumaShare before = pool.numa()[near == NumaNode(0) ? 0 : 1];
      const auto made = pool.reserve(session, kSegment, "local", near);
      REQUIRE(made.ok() == (held.size() < 8));
      if (!made) continue;
      const bool had_room = before.granted_bytes < before.capacity_bytes;
      REQUIRE((pool.find(made->front())->numa == near) == had_room);
      near_count += had_room ? 1 : 0;
      REQUIRE(pool.activate(made->front()));
      held.push_back(made->front());
    } else if (!held.empty()) {
      const SegmentId segment = held[random.next() % held.size()];
      REQUIRE(pool.release(session, {segment}).ok());
      pool.forget(segment);
      held.erase(std::find(held.begin(), held.end(), segment));
    }
  }
  CHECK(near_count > 500);  // the pool itself checks the sums after every change
}

}  // namespace ho::daemon
