// What the C++ header adds to the C one.
#include <hyperoffload/hyperoffload.h>

#include <catch2/catch.hpp>
#include <hyperoffload/hyperoffload.hpp>
#include <string>

#include "tests/integration/client/two_nodes.hpp"

namespace {

using ho::test::TwoNodes;

TEST_CASE("client: the library has its header's version") {
  const std::string header = std::to_string(HO_VERSION_MAJOR) + '.' +
                             std::to_string(HO_VERSION_MINOR) + '.' +
                             std::to_string(HO_VERSION_PATCH);
  CHECK(ho_version() == header);
}

TEST_CASE("client: the C++ pool tells its room, and allocates among some nodes") {
  TwoNodes nodes;
  hyperoffload::Pool::Options options;
  options.pool = nodes.address(0);
  hyperoffload::Pool pool(options);
  const ho_pool_room room = pool.room();
  CHECK(room.nodes == 2);
  CHECK(room.ddr_bytes > 0);
  CHECK(pool.room(HO_FAR_NODES).nodes == 0);
  CHECK(pool.allocate(4096, HO_NEAR_NODES).get() != nullptr);
  CHECK_THROWS_AS(pool.allocate(4096, HO_FAR_NODES), hyperoffload::Error);
}

}  // namespace
