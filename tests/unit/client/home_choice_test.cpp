#include "client/runtime/homes/home_choice.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace ho::client {
namespace {

constexpr std::uint64_t kBytes = 65536;

/// A pool of nodes in racks of equally many, and what lies on it.
class Nodes {
 public:
  Nodes(std::size_t count, std::size_t in_rack) : bytes(count, 0), lost(count, false) {
    for (std::size_t n = 0; n < count; ++n) {
      places_.push_back({"r" + std::to_string(n / in_rack), "m" + std::to_string(n)});
    }
  }

  [[nodiscard]] HomePool pool(std::uint16_t begin) const {
    return {[](NodeIndex node) { return NodeId(static_cast<std::uint16_t>(node.value())); },
            NodeId(begin),
            kHomeNodes,
            [this] { return domains(); },
            bytes.size(),
            [this](Nearness) {
              std::vector<NodeIndex> out;
              for (std::uint32_t n = 0; n < bytes.size(); ++n) {
                if (!lost[n]) out.push_back(NodeIndex(n));
              }
              return out;
            },
            [this](NodeIndex node) { return lost[node.value()]; },
            [](NodeIndex) { return false; },
            [this](NodeIndex node) { return bytes[node.value()]; }};
  }
  [[nodiscard]] FailureDomains domains() const { return FailureDomains(places_); }

  /// Homes of equal values of a job.
  std::vector<HomeNodes> choose(std::size_t values, std::uint16_t begin,
                                const std::vector<NodeIndex>& full = {}) {
    const std::vector<DoubledWish> wishes(values, {kBytes, {Nearness::kAny, Nearness::kAny}});
    std::vector<std::uint64_t> wanted(bytes.size(), 0);
    const auto homes = choose_homes(pool(begin), wishes, full, 64, wanted);
    if (!homes) FAIL(homes.error().message());
    for (std::size_t n = 0; n < wanted.size(); ++n) bytes[n] += wanted[n];
    return *homes;
  }

  std::vector<std::uint64_t> bytes;  ///< that homes take, per node
  std::vector<bool> lost;

 private:
  std::vector<FailureDomains::Place> places_;
};

using Pairs = std::set<std::pair<std::uint32_t, std::uint32_t>>;

Pairs pairs_of(const std::vector<HomeNodes>& homes) {
  Pairs out;
  for (const HomeNodes& home : homes) {
    const std::uint32_t a = home[0].value();
    const std::uint32_t b = home[1].value();
    out.emplace(std::min(a, b), std::max(a, b));
  }
  return out;
}

}  // namespace

TEST_CASE("homes: a job's values lie on a few pairs of nodes of a large pool, evenly") {
  constexpr std::size_t kJobs = 8;
  std::vector<HomeNodes> all;
  for (std::size_t job = 0; job < kJobs; ++job) {
    Nodes nodes(256, 16);
    const auto homes = nodes.choose(200, static_cast<std::uint16_t>(job * 31));
    for (const HomeNodes& home : homes) CHECK(nodes.domains().are_apart(home[0], home[1]));
    const Pairs pairs = pairs_of(homes);
    CHECK(pairs.size() <= kHomeNodes * kHomePartners);
    std::set<std::uint32_t> used;
    for (const auto& [a, b] : pairs) used.insert({a, b});
    CHECK(used.size() >= kHomeNodes);
    CHECK(used.size() <= 2 * kHomeNodes);
    all.insert(all.end(), homes.begin(), homes.end());
  }
  // Few of the 32,640 pairs of nodes end a job if they are lost.
  CHECK(pairs_of(all).size() <= 256 * kHomePartners);
  Nodes one(256, 16);
  (void)one.choose(800, 100);
  const std::uint64_t most = *std::max_element(one.bytes.begin(), one.bytes.end());
  CHECK(most <= 2 * 800 * kBytes / kHomeNodes);
}

TEST_CASE("homes: a small pool is used evenly") {
  for (const std::size_t count : {2U, 3U, 4U, 5U}) {
    Nodes nodes(count, 1);
    (void)nodes.choose(120, 1);
    const auto [least, most] = std::minmax_element(nodes.bytes.begin(), nodes.bytes.end());
    INFO(count << " nodes");
    CHECK(*most - *least <= 2 * kBytes);
  }
}

TEST_CASE("homes: where the nodes of a job's part of the ring are full, the next ones are used") {
  Nodes nodes(64, 4);
  std::vector<NodeIndex> full;
  for (int round = 0; round < 3; ++round) {
    const auto homes = nodes.choose(50, 7, full);
    for (const HomeNodes& home : homes) {
      for (const NodeIndex node : home) {
        CHECK(std::find(full.begin(), full.end(), node) == full.end());
      }
    }
    for (const HomeNodes& home : homes) full.insert(full.end(), home.begin(), home.end());
  }
}

TEST_CASE("homes: what some nodes have no room for lies on more of a pool") {
  constexpr std::uint64_t kRoom = 10 * kBytes;
  for (const std::size_t values : {50U, 200U, 300U}) {
    INFO(values << " values");
    Nodes nodes(64, 4);
    const std::vector<DoubledWish> wishes(values, {kBytes, {Nearness::kAny, Nearness::kAny}});
    std::size_t asked = 0;
    const auto make_room = [&](NodeIndex node, std::uint64_t bytes) -> Result<void> {
      ++asked;
      // One node is full from the beginning.
      if (bytes <= kRoom && node != NodeIndex(9)) return {};
      return Error(Errc::kExhausted, "full");
    };
    const auto homes = place_homes([&] { return nodes.pool(7); }, wishes, 64, make_room);
    CHECK(asked < 20'000);
    if (values == 300) {  // nearly all room that there is
      CHECK((homes || homes.error().message().find("full") != std::string::npos));
      continue;
    }
    REQUIRE(homes.ok());
    std::vector<std::uint64_t> bytes(64, 0);
    for (const HomeNodes& home : *homes) {
      for (const NodeIndex node : home) bytes[node.value()] += kBytes;
    }
    CHECK(*std::max_element(bytes.begin(), bytes.end()) <= kRoom);
    CHECK(bytes[9] == 0);
    if (values == 50) CHECK(pairs_of(*homes).size() <= 2 * kHomeNodes * kHomePartners);
  }
}

TEST_CASE("homes: a lost node's values come to partners of the nodes that have the others") {
  Nodes nodes(256, 16);
  auto homes = nodes.choose(400, 0);
  const std::size_t before = pairs_of(homes).size();
  const NodeIndex gone = homes.front()[0];
  nodes.lost[gone.value()] = true;
  std::size_t moved = 0;
  for (HomeNodes& home : homes) {
    const auto leaving = leaving_home(nodes.pool(0), home);
    if (!leaving) continue;
    CHECK(home[leaving->home] == gone);
    home[leaving->home] = leaving->nodes.front();
    CHECK(nodes.domains().are_apart(home[0], home[1]));
    nodes.bytes[leaving->nodes.front().value()] += kBytes;
    ++moved;
  }
  CHECK(moved > 10);
  CHECK(pairs_of(homes).size() <= before + 2 * kHomePartners);
}

}  // namespace ho::client
