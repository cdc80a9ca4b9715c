#include "client/pool/placement/spread.hpp"

#include <catch2/catch.hpp>

#include "common/base/units.hpp"

namespace {

using namespace ho;
using client::NodeIndex;
using client::NodeRoom;
using client::nodes_of_arena;
using client::plan_spread;
using client::StagingPart;

std::vector<NodeRoom> two(std::uint64_t free_first, std::uint64_t free_second) {
  return {{NodeIndex(0), "a", 2 * kMiB, free_first}, {NodeIndex(1), "b", 2 * kMiB, free_second}};
}

}  // namespace

TEST_CASE("spread: segments come from the nodes in turn and add up") {
  const auto stripes = plan_spread(7 * kMiB, two(64 * kMiB, 64 * kMiB));
  REQUIRE(stripes.ok());
  REQUIRE(stripes->size() == 4);
  std::uint64_t sum = 0;
  for (std::uint32_t i = 0; i < 4; ++i) {
    CHECK((*stripes)[i].node == NodeIndex(i % 2));
    sum += (*stripes)[i].length_bytes;
  }
  CHECK(sum == 7 * kMiB);
}

TEST_CASE("spread: an arena smaller than a segment still uses every node") {
  const auto stripes = plan_spread(100'000, two(64 * kMiB, 64 * kMiB));
  REQUIRE(stripes.ok());
  REQUIRE(stripes->size() == 2);
  CHECK((*stripes)[0].node != (*stripes)[1].node);
}

TEST_CASE("spread: a full node is skipped") {
  const auto stripes = plan_spread(6 * kMiB, two(2 * kMiB, 64 * kMiB));
  REQUIRE(stripes.ok());
  REQUIRE(stripes->size() == 3);
  CHECK((*stripes)[0].node == NodeIndex(0));
  CHECK((*stripes)[1].node == NodeIndex(1));
  CHECK((*stripes)[2].node == NodeIndex(1));
}

TEST_CASE("spread: the shares of a small arena use up what single segments have left") {
  const auto stripes = plan_spread(2 * kMiB, two(0, 2 * kMiB));
  REQUIRE(stripes.ok());
  std::uint64_t sum = 0;
  for (const auto& stripe : *stripes) {
    CHECK(stripe.node == NodeIndex(1));
    sum += stripe.length_bytes;
  }
  CHECK(sum == 2 * kMiB);
  CHECK_FALSE(plan_spread(2 * kMiB + 1, two(0, 2 * kMiB)).ok());
  CHECK_FALSE(plan_spread(kMiB, two(0, 2 * kMiB - 1)).ok());  // not a whole segment
}

TEST_CASE("spread: parts of an arena lie on their nodes, and the rest fills the gaps") {
  const std::vector<StagingPart> parts = {{NodeIndex(1), kMiB, 3 * kMiB},
                                          {NodeIndex(0), 4 * kMiB, 4096}};
  const auto stripes = plan_spread(6 * kMiB, two(64 * kMiB, 64 * kMiB), parts);
  REQUIRE(stripes.ok());
  std::uint64_t at = 0;
  std::vector<std::uint64_t> fixed;
  for (const auto& stripe : *stripes) {
    if (at == kMiB) CHECK(stripe.node == NodeIndex(1));
    if (at == 4 * kMiB) CHECK(stripe.node == NodeIndex(0));
    if (at == kMiB || at == 4 * kMiB) fixed.push_back(stripe.length_bytes);
    at += stripe.length_bytes;
  }
  CHECK(at == 6 * kMiB);
  CHECK(fixed == std::vector<std::uint64_t>{3 * kMiB, 4096});
}

TEST_CASE("spread: a part whose node was lost meanwhile is unavailable, not on another") {
  const std::vector<StagingPart> parts = {{NodeIndex(1), 0, kMiB}, {NodeIndex(2), kMiB, kMiB}};
  const auto stripes = plan_spread(3 * kMiB, two(64 * kMiB, 64 * kMiB), parts);
  REQUIRE_FALSE(stripes.ok());
  CHECK(stripes.error().code() == Errc::kUnavailable);
  CHECK(plan_spread(kMiB, {}, std::span(parts).first(1)).error().code() == Errc::kUnavailable);
}

TEST_CASE("spread: parts that their node has no room for are exhausted") {
  const std::vector<StagingPart> parts = {{NodeIndex(1), 0, kMiB + 1}};
  const auto stripes = plan_spread(3 * kMiB, two(64 * kMiB, kMiB), parts);
  REQUIRE_FALSE(stripes.ok());
  CHECK(stripes.error().code() == Errc::kExhausted);
}

TEST_CASE("spread: too little room names need, room and nodes") {
  const auto stripes = plan_spread(9 * kMiB, two(4 * kMiB, 4 * kMiB));
  REQUIRE_FALSE(stripes.ok());
  CHECK(stripes.error().code() == Errc::kExhausted);
  CHECK(stripes.error().context() ==
        "needs 9.00 MiB, pool has 8.00 MiB on nodes a (free 4.00 MiB, in segments of 2.00 MiB), "
        "b (free 4.00 MiB, in segments of 2.00 MiB)");
  CHECK_FALSE(plan_spread(1, {}).ok());
}

namespace {

/// A pool of nodes with segments of 2 MiB, which counts what it is asked.
struct Ring {
  explicit Ring(std::uint32_t count, std::uint64_t free_bytes = 64 * kMiB) {
    for (std::uint32_t i = 0; i < count; ++i) {
      nodes.emplace_back(i);
      rooms.push_back({NodeIndex(i), std::to_string(i), 2 * kMiB, free_bytes});
    }
  }
  std::vector<NodeRoom> choose(std::uint64_t bytes, std::vector<StagingPart> parts = {}) {
    asked = 0;
    return nodes_of_arena(bytes, parts, nodes, [this](const auto& some) {
      asked += some.size();
      std::vector<NodeRoom> out;
      for (const NodeIndex node : some) out.push_back(rooms[node.value()]);
      return out;
    });
  }
  std::vector<NodeIndex> nodes;
  std::vector<NodeRoom> rooms;
  std::size_t asked = 0;
};

}  // namespace

TEST_CASE("spread: an arena lies on few nodes, and few are asked, however many there are") {
  for (const std::uint32_t count : {2U, 8U, 40U, 1000U}) {
    Ring ring(count);
    const auto small = ring.choose(kMiB);
    CHECK(small.size() == std::min(count, 8U));
    CHECK(ring.asked == small.size());
    const auto stripes = plan_spread(kMiB, small);
    REQUIRE(stripes.ok());
    CHECK(stripes->size() == small.size());
    CHECK(ring.choose(20 * kMiB).size() == std::min(count, 10U));
    CHECK(ring.choose(1000 * kMiB).size() == std::min(count, 32U));
    CHECK(ring.asked == std::min(count, 32U));
  }
}

TEST_CASE("spread: nodes without room are passed over, and no more are taken than suffice") {
  Ring ring(1000);
  for (std::uint32_t i = 0; i < 30; ++i) ring.rooms[i].free_bytes = 2 * kMiB - 1;
  const auto chosen = ring.choose(8 * kMiB);
  REQUIRE(chosen.size() == 8);
  CHECK(chosen.front().node == NodeIndex(30));
  CHECK(ring.asked == 40);
  for (std::uint32_t i = 30; i < 1000; ++i) ring.rooms[i].free_bytes = 2 * kMiB;
  const auto many = ring.choose(80 * kMiB);  // a segment of each
  CHECK(many.size() >= 40);
  CHECK(many.size() < 48);
  CHECK(plan_spread(80 * kMiB, many).ok());
  CHECK(ring.choose(970 * 2 * kMiB).size() == 970);
  CHECK(ring.choose(971 * 2 * kMiB).size() == 1000);  // for the words of the error
}

TEST_CASE("spread: nodes that hold parts of an arena are among its nodes, beside the others") {
  Ring ring(40);
  const auto chosen = ring.choose(33 * kMiB, {{NodeIndex(0), 0, 32 * kMiB}});
  REQUIRE(chosen.size() == 9);
  CHECK(chosen.front().node == NodeIndex(0));
  CHECK(
      plan_spread(33 * kMiB, chosen, std::vector<StagingPart>{{NodeIndex(0), 0, 32 * kMiB}}).ok());
}
