#include "common/layout/layout.hpp"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

using namespace ho;
using namespace ho::layout;

namespace {

/// Each rank's interval along the only dimension.
std::vector<std::pair<std::uint64_t, std::uint64_t>> parts(const std::string& mesh_text,
                                                           const std::string& layout_text,
                                                           std::uint64_t size) {
  const auto mesh = parse_mesh(mesh_text);
  REQUIRE(mesh);
  const auto layout = parse_layout(layout_text, *mesh);
  REQUIRE(layout);
  const auto boxes = regions(*mesh, *layout, {size});
  REQUIRE(boxes);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> found;
  for (const Box& box : *boxes) found.emplace_back(box.sides[0].begin, box.sides[0].end);
  return found;
}

using Parts = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

}  // namespace

TEST_CASE("layout: the last axis of a mesh varies fastest") {
  CHECK(parts("2x2:a,b", "a", 4) == Parts{{0, 2}, {0, 2}, {2, 4}, {2, 4}});
  CHECK(parts("2x2:a,b", "b", 4) == Parts{{0, 2}, {2, 4}, {0, 2}, {2, 4}});
}

TEST_CASE("layout: several axes divide a dimension from major to minor") {
  CHECK(parts("2x2:a,b", "a,b", 8) == Parts{{0, 2}, {2, 4}, {4, 6}, {6, 8}});
  CHECK(parts("2x2:a,b", "b,a", 8) == Parts{{0, 2}, {4, 6}, {2, 4}, {6, 8}});
}

TEST_CASE("layout: division by ceiling leaves the last parts smaller or empty") {
  CHECK(parts("4:a", "a", 5) == Parts{{0, 2}, {2, 4}, {4, 5}, {5, 5}});
  // Source: torch.chunk and DTensor's nested Shard(0), Shard(0).
  CHECK(parts("4x2:a,b", "a,b", 9) ==
        Parts{{0, 2}, {2, 3}, {3, 5}, {5, 6}, {6, 8}, {8, 9}, {9, 9}, {9, 9}});
}

TEST_CASE("layout: exact division refuses a remainder and names the dimension") {
  const auto mesh = parse_mesh("4x2:dp,tp");
  REQUIRE(mesh);
  const auto layout = parse_layout("-;dp,tp", *mesh, Division::kExact);
  REQUIRE(layout);
  CHECK(regions(*mesh, *layout, {15, 16}));
  const auto boxes = regions(*mesh, *layout, {15, 12});
  REQUIRE_FALSE(boxes);
  CHECK(boxes.error().context().find("dimension 1 has 12 elements, which dp,tp") == 0);
}

TEST_CASE("layout: ranks of a mesh may be listed in any order") {
  const auto mesh = parse_mesh("2x2:a,b@7,3,8-9");
  REQUIRE(mesh);
  CHECK(mesh->ranks == std::vector<std::uint32_t>{7, 3, 8, 9});
}

TEST_CASE("layout: a mesh that makes no sense is refused") {
  for (const char* text : {"",
                           "4",
                           "4:",
                           ":a",
                           "4x2:a",
                           "4:a,b",
                           "0:a",
                           "-1:a",
                           "4x:a,b",
                           "2:a@1",
                           "2:a@1,1",
                           "2:a@2-1",
                           "2x2:a,a",
                           "65537:a",
                           "65536x2:a,b",
                           "2:a;b",
                           "2:-",
                           "2:a@0-99999999",
                           "2:a@0,1@2",
                           "4294967295x4294967295:a,b"}) {
    INFO(text);
    const auto mesh = parse_mesh(text);
    REQUIRE_FALSE(mesh);
    CHECK(mesh.error().code() == Errc::kInvalidArgument);
  }
}

TEST_CASE("layout: a layout that makes no sense is refused") {
  const auto mesh = parse_mesh("4x2:dp,tp");
  REQUIRE(mesh);
  for (const char* text : {"", "x", "dp;dp", "dp,dp", "dp;", "dp+sum:dp", "-+sum", "-+avg:dp",
                           "-+sum:", "-;-;-;-;-;-;-;-;-"}) {
    INFO(text);
    CHECK_FALSE(parse_layout(text, *mesh));
  }
  const auto layout = parse_layout("-;dp+sum:tp", *mesh);
  REQUIRE(layout);
  CHECK(layout->partials.at(0).axis == 1);
}

TEST_CASE("layout: a shape has from one to eight dimensions and at most 2^50 elements") {
  CHECK(parse_shape("15,5").value() == Shape{15, 5});
  CHECK(parse_shape("15x5").value() == Shape{15, 5});
  for (const char* text : {"", "3,,4", "3,4x5", "-1", "1,1,1,1,1,1,1,1,1", "4294967296,4294967296",
                           "4294967296,0,4294967296"}) {
    INFO(text);
    CHECK_FALSE(parse_shape(text));
  }
}

TEST_CASE("layout: a dimension of size 0 leaves every rank without elements") {
  CHECK(parse_shape("0,5").value() == Shape{0, 5});
  CHECK(parts("4:a", "a", 0) == Parts{{0, 0}, {0, 0}, {0, 0}, {0, 0}});
  const auto mesh = parse_mesh("4x2:dp,tp");
  REQUIRE(mesh);
  for (const Division division : {Division::kCeil, Division::kExact}) {
    const auto layout = parse_layout("dp;tp", *mesh, division);
    REQUIRE(layout);
    const auto boxes = regions(*mesh, *layout, {0, 6});
    REQUIRE(boxes);
    for (const Box& box : *boxes) CHECK(box.empty());
  }
}

TEST_CASE("layout: another number of dimensions than the shape's is refused") {
  const auto mesh = parse_mesh("2:a");
  REQUIRE(mesh);
  const auto layout = parse_layout("a;-", *mesh);
  REQUIRE(layout);
  CHECK_FALSE(regions(*mesh, *layout, {4}));
}
