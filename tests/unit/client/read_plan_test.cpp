#include "client/objects/read_plan.hpp"

#include <catch2/catch.hpp>
#include <cstring>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "common/base/prng.hpp"
#include "tests/support/seeds.hpp"

namespace {

using namespace ho;
using client::plan_read;
using client::ReadPlan;
using client::TileRead;

struct Side {
  layout::Mesh mesh;
  std::string layout;
};

Side random_side(Prng& random, std::size_t dimensions) {
  static const char* const kMeshes[] = {"1:a", "2:a", "3:a", "4x2:a,b", "2x4:a,b", "2x2x2:a,b,c"};
  const std::string text = kMeshes[random.below(6)];
  Side out;
  const auto mesh = layout::parse_mesh(text);
  REQUIRE(mesh.ok());
  out.mesh = *mesh;
  std::vector<std::string> axes(dimensions);
  for (const layout::Axis& axis : out.mesh.axes) {
    const std::uint64_t where = random.below(dimensions + 1);
    if (where == dimensions) continue;
    axes[where] += (axes[where].empty() ? "" : ",") + axis.name;
  }
  for (const std::string& one : axes) {
    out.layout += (out.layout.empty() ? "" : ";") + (one.empty() ? std::string("-") : one);
  }
  return out;
}

/// The places of a box's elements in the whole tensor, in the box's order.
std::vector<std::uint32_t> places(const layout::Box& box, const layout::Shape& shape) {
  std::vector<std::uint32_t> out;
  out.reserve(box.elements());
  std::vector<std::uint64_t> at(shape.size(), 0);
  for (std::uint64_t i = 0; i < box.elements(); ++i) {
    std::uint64_t place = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) {
      place = place * shape[d] + box.sides[d].begin + at[d];
    }
    out.push_back(static_cast<std::uint32_t>(place));
    for (std::size_t d = shape.size(); d > 0 && ++at[d - 1] == box.sides[d - 1].size(); --d) {
      at[d - 1] = 0;
    }
  }
  return out;
}

std::vector<layout::Box> boxes(const Side& side, const layout::Shape& shape) {
  const auto parsed = layout::parse_layout(side.layout, side.mesh);
  REQUIRE(parsed.ok());
  const auto out = layout::regions(side.mesh, *parsed, shape);
  REQUIRE(out.ok());
  return *out;
}

}  // namespace

TEST_CASE("read plan: a reader has its tile, whatever the two layouts are", "[unit]") {
  const std::uint64_t seeds = test::seed_count(12);
  for (std::uint64_t i = 0; i < seeds; ++i) {
    const std::uint64_t seed = test::only_seed().value_or(i);
    INFO("HO_SEED=" << seed);
    Prng random(seed);
    layout::Shape shape;
    const std::size_t dimensions = 1 + random.below(3);
    const std::uint64_t most = dimensions == 1 ? 900'000 : dimensions == 2 ? 900 : 90;
    for (std::size_t d = 0; d < dimensions; ++d) shape.push_back(1 + random.below(most));
    const Side from = random_side(random, dimensions);
    const Side to = random_side(random, dimensions);
    INFO(from.layout << " -> " << to.layout);
    const ObjectTensor tensor{"w", from.layout, shape, 4, ""};
    const auto held = boxes(from, shape);
    const auto wanted = boxes(to, shape);
    std::vector<std::vector<std::uint32_t>> tiles;
    for (const layout::Box& box : held) tiles.push_back(places(box, shape));
    for (std::size_t rank = 0; rank < wanted.size(); ++rank) {
      const auto mine = places(wanted[rank], shape);
      const auto plan = plan_read(from.mesh, {tensor}, to.mesh, static_cast<std::uint32_t>(rank),
                                  {{"w", to.layout, shape, 4, "", mine.size() * 4}});
      REQUIRE(plan.ok());
      CHECK(plan->needed_bytes == mine.size() * 4);
      std::vector<std::uint32_t> got(mine.size(), UINT32_MAX);
      auto* const memory = reinterpret_cast<std::byte*>(got.data());
      std::uint64_t fetched = 0;
      for (const TileRead& tile : plan->tiles) {
        const auto source = std::as_bytes(std::span(tiles[tile.position]));
        REQUIRE(tile.tile_bytes == source.size());
        for (const client::ChunkRead& chunk : tile.chunks) {
          const auto bytes = source.subspan(chunk.begin_bytes, chunk.length_bytes);
          fetched += bytes.size();
          if (!chunk.destination_bytes) {
            client::scatter(tile, chunk, bytes, memory);
            continue;
          }
          REQUIRE(*chunk.destination_bytes + bytes.size() <= got.size() * 4);
          std::memcpy(memory + *chunk.destination_bytes, bytes.data(), bytes.size());
        }
      }
      CHECK(fetched == plan->fetched_bytes);
      CHECK(got == mine);
    }
  }
}

TEST_CASE("read plan: equal layouts fetch each byte once, into its place", "[unit]") {
  const auto mesh = layout::parse_mesh("4x2:dp,tp");
  REQUIRE(mesh.ok());
  const ObjectTensor tensor{"w", "-;tp", {3000, 2000}, 4, "f32"};
  const auto plan = plan_read(*mesh, {tensor}, *mesh, 5, {{"w", "-;tp", {}, 0, "", 12'000'000}});
  REQUIRE(plan.ok());
  CHECK(plan->fetched_bytes == plan->needed_bytes);
  REQUIRE(plan->tiles.size() == 1);
  CHECK(plan->tiles.front().position == 1);  // rank 1 stores what ranks 1, 3, 5 and 7 hold
  for (const client::ChunkRead& chunk : plan->tiles.front().chunks) {
    CHECK(chunk.destination_bytes == chunk.begin_bytes);
  }
}

TEST_CASE("read plan: a tile that does not fit the object is refused", "[unit]") {
  const auto mesh = layout::parse_mesh("2:tp");
  REQUIRE(mesh.ok());
  const ObjectTensor tensor{"w", "tp;-", {10, 10}, 4, "f32"};
  const auto code = [&](const client::WantedTensor& wanted, std::uint32_t rank = 0) {
    const auto plan = plan_read(*mesh, {tensor}, *mesh, rank, {wanted});
    return plan ? Errc::kOk : plan.error().code();
  };
  CHECK(code({"w", "tp;-", {}, 0, "", 200}) == Errc::kOk);
  CHECK(code({"v", "tp;-", {}, 0, "", 200}) == Errc::kNotFound);
  CHECK(code({"w", "tp;-", {10, 11}, 0, "", 200}) == Errc::kConflict);
  CHECK(code({"w", "tp;-", {}, 2, "", 200}) == Errc::kConflict);
  CHECK(code({"w", "tp;-", {}, 0, "bf16", 200}) == Errc::kConflict);
  CHECK(code({"w", "tp;-", {}, 0, "", 201}) == Errc::kInvalidArgument);
  CHECK(code({"w", "tp", {}, 0, "", 200}) == Errc::kInvalidArgument);
  CHECK(code({"w", "tp;-+sum:tp", {}, 0, "", 200}) == Errc::kInvalidArgument);
  CHECK(code({"w", "tp;-", {}, 0, "", 200}, 2) == Errc::kInvalidArgument);
}
