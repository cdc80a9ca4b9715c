#include "client/pool/placement/failure_domains.hpp"

#include <catch2/catch.hpp>
#include <cstddef>
#include <string>
#include <vector>

namespace ho::client {
namespace {

using Place = FailureDomains::Place;

NodeIndex node(std::size_t number) { return NodeIndex(static_cast<std::uint32_t>(number)); }

std::vector<NodeIndex> all(std::size_t count) {
  std::vector<NodeIndex> out;
  for (std::size_t n = 0; n < count; ++n) out.push_back(node(n));
  return out;
}

}  // namespace

TEST_CASE("failure domains: racks count before machines, and machines before nodes") {
  const FailureDomains nodes(std::vector<Place>{{"", "m"}, {"", "m"}});
  CHECK(nodes.are_apart(node(0), node(1)));
  CHECK_FALSE(nodes.are_apart(node(1), node(1)));
  CHECK(nodes.some_apart(all(2)));
  CHECK_FALSE(nodes.some_apart(all(1)));
  CHECK_FALSE(nodes.some_apart({}));
  CHECK(nodes.count(all(2)) == 1);
  CHECK(nodes.count({}) == 0);

  const FailureDomains machines(std::vector<Place>{{"r", "m"}, {"r", "m"}, {"r", "n"}});
  CHECK_FALSE(machines.are_apart(node(0), node(1)));
  CHECK(machines.are_apart(node(0), node(2)));
  CHECK_FALSE(machines.some_apart(all(2)));
  CHECK(machines.some_apart(all(3)));
  CHECK(machines.count(all(3)) == 2);

  const FailureDomains racks(std::vector<Place>{{"r", "m"}, {"r", "n"}, {"s", "o"}});
  CHECK_FALSE(racks.are_apart(node(0), node(1)));
  CHECK(racks.are_apart(node(0), node(2)));
  CHECK(racks.count(all(3)) == 2);
  CHECK(racks.count(all(2)) == 1);
}

TEST_CASE("failure domains: racks count only where each node names its own") {
  const FailureDomains machines(std::vector<Place>{{"r", "m"}, {"", "m"}, {"s", "n"}});
  CHECK_FALSE(machines.are_apart(node(0), node(1)));
  CHECK(machines.are_apart(node(0), node(2)));
}

}  // namespace ho::client
