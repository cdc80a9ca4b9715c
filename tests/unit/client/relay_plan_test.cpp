#include "client/objects/relay_plan.hpp"

#include <catch2/catch.hpp>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "client/objects/tiles.hpp"
#include "common/base/prng.hpp"
#include "tests/support/seeds.hpp"

namespace {

using namespace ho;
using client::RelayPlan;
using client::RelayStep;

layout::Mesh mesh_of(const std::string& text) {
  const auto mesh = layout::parse_mesh(text);
  REQUIRE(mesh.ok());
  return *mesh;
}

/// The bytes of a rank's tile that it has after each step; the last are all.
void check_chain(const RelayPlan& plan, std::size_t wanted, std::uint64_t tile_bytes) {
  client::TileRange has = plan.first[wanted].range;
  for (const RelayStep& step : plan.steps) {
    for (const client::RelayedTensor& one : step.tensors) {
      if (one.wanted != wanted) continue;
      CHECK(one.before.length_bytes == has.length_bytes);
      if (has.length_bytes > 0) CHECK(one.before.begin_bytes == has.begin_bytes);
      CHECK(one.before.length_bytes <= one.after.length_bytes);
      has = one.after;
    }
  }
  CHECK(has.length_bytes == tile_bytes);
  CHECK(has.begin_bytes == 0);
}

}  // namespace

TEST_CASE("relay plan: ranks read parts that make up their tiles, each byte once", "[unit]") {
  test::for_each_seed(test::seed_count(60), [&](std::uint64_t seed) {
    Prng random(seed);
    const std::string sizes = std::to_string(1 + random.below(3)) + "x" +
                              std::to_string(1 + random.below(4)) + "x" +
                              std::to_string(1 + random.below(3));
    const layout::Mesh mesh = mesh_of(sizes + ":a,b,c");
    const char* const kLayouts[] = {"-;-", "a;-", "-;b", "b,a;-", "c;a", "b;c"};
    const char* const kRelays[] = {"a", "b", "c;a", "a,b", "b;a,c", "a;b;c"};
    const std::string layout = kLayouts[random.below(6)];
    const std::string relay = kRelays[random.below(6)];
    INFO(sizes << " " << layout << ", relay " << relay);
    const ObjectTensor tensor{"w", layout, {1 + random.below(40), 1 + random.below(9)}, 4, "f32"};
    const auto steps = client::parse_relay(relay, mesh);
    REQUIRE(steps.ok());
    const auto placed = client::placement_of(mesh, tensor);
    REQUIRE(placed.ok());
    const auto boxes = layout::regions(mesh, placed->layout, tensor.shape);
    REQUIRE(boxes.ok());
    std::map<std::string, std::set<std::size_t>> groups;  // by step and mesh: positions in it
    std::uint64_t read = 0;
    std::uint64_t relayed_ranks = 1;  // that share a tile
    for (const auto& step : *steps) {
      bool used = false;
      for (const std::uint32_t axis : step) {
        used = used || layout.find(mesh.axes[axis].name) != std::string::npos;
      }
      if (used) continue;
      for (const std::uint32_t axis : step) relayed_ranks *= mesh.axes[axis].size;
    }
    std::uint64_t all = 0;
    for (std::size_t position = 0; position < mesh.ranks.size(); ++position) {
      const auto plan = client::plan_relays(mesh, position, {tensor}, *steps);
      REQUIRE(plan.ok());
      const std::uint64_t tile_bytes = (*boxes)[position].elements() * 4;
      all += tile_bytes;
      check_chain(*plan, 0, tile_bytes);
      // What it reads first is what it has by that layout.
      ObjectTensor first = tensor;
      first.layout = plan->first[0].layout;
      const auto divided = client::placement_of(mesh, first);
      REQUIRE(divided.ok());
      const auto parts = layout::regions(mesh, divided->layout, tensor.shape);
      REQUIRE(parts.ok());
      CHECK((*parts)[position].elements() * 4 == plan->first[0].range.length_bytes);
      read += plan->first[0].range.length_bytes;
      for (std::size_t s = 0; s < plan->steps.size(); ++s) {
        const RelayStep& step = plan->steps[s];
        const layout::Mesh group = mesh_of(step.mesh);
        REQUIRE(step.position < group.ranks.size());
        CHECK(group.ranks[step.position] == mesh.ranks[position]);
        CHECK(groups[std::to_string(s) + step.mesh].insert(step.position).second);
      }
    }
    for (const auto& [group, positions] : groups) {
      CHECK(positions.size() == mesh_of(group.substr(1)).ranks.size());
    }
    CHECK(read * relayed_ranks == all);
  });
}

TEST_CASE("relay plan: axes are named once, and are the mesh's", "[unit]") {
  const layout::Mesh mesh = mesh_of("2x4:node,gpu");
  const auto steps = client::parse_relay("node;gpu", mesh);
  REQUIRE(steps.ok());
  CHECK(*steps == std::vector<std::vector<std::uint32_t>>{{0}, {1}});
  CHECK(client::parse_relay("gpu,node", mesh)->size() == 1);
  for (const char* const text : {"", "tp", "gpu;", ";gpu", "gpu,gpu", "gpu;gpu", "gpu, node"}) {
    CHECK_FALSE(client::parse_relay(text, mesh).ok());
  }
}
