#include "client/objects/read_plan.hpp"

#include <algorithm>
#include <array>
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

/// The same in the order in which the pool has a tile.
std::vector<std::uint32_t> stored(const layout::Box& box, const layout::Shape& shape,
                                  Chunking chunking) {
  std::vector<std::uint32_t> out;
  const client::ChunkGrid chunks(box, 4, chunking);
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const auto more = places(chunks.box(i), shape);
    out.insert(out.end(), more.begin(), more.end());
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
  test::for_each_seed(test::seed_count(12), [&](std::uint64_t seed) {
    Prng random(seed);
    layout::Shape shape;
    const std::size_t dimensions = 1 + random.below(3);
    const std::uint64_t most = dimensions == 1 ? 900'000 : dimensions == 2 ? 900 : 90;
    for (std::size_t d = 0; d < dimensions; ++d) shape.push_back(1 + random.below(most));
    const Chunking chunking = random.below(2) == 0 ? Chunking::kRows : Chunking::kGrid;
    const Side from = random_side(random, dimensions);
    const Side to = random_side(random, dimensions);
    INFO(from.layout << " -> " << to.layout);
    const ObjectTensor tensor{"w", from.layout, shape, 4, ""};
    const auto held = boxes(from, shape);
    const auto wanted = boxes(to, shape);
    std::vector<std::vector<std::uint32_t>> tiles;  // as they are stored
    for (const layout::Box& box : held) tiles.push_back(stored(box, shape, chunking));
    for (std::size_t rank = 0; rank < wanted.size(); ++rank) {
      const auto mine = places(wanted[rank], shape);
      const auto plan =
          plan_read(from.mesh, {tensor}, chunking, to.mesh, static_cast<std::uint32_t>(rank),
                    {{{"w", to.layout, shape, 4, ""}, mine.size() * 4}});
      REQUIRE(plan.ok());
      CHECK(plan->needed_bytes == mine.size() * 4);
      std::vector<std::uint32_t> got(mine.size(), UINT32_MAX);
      auto* const memory = reinterpret_cast<std::byte*>(got.data());
      std::uint64_t fetched = 0;
      for (const TileRead& tile : plan->tiles) {
        const auto source = std::as_bytes(std::span(tiles[tile.position]));
        REQUIRE(tile.tile_bytes == source.size());
        std::size_t chunks = 0;
        for (const client::PieceRead& piece : tile.pieces) {
          REQUIRE(piece.length_bytes <= client::kObjectPieceBytes);
          const auto bytes = source.subspan(piece.begin_bytes, piece.length_bytes);
          fetched += bytes.size();
          if (piece.destination_bytes) {
            REQUIRE(*piece.destination_bytes + bytes.size() <= got.size() * 4);
            std::memcpy(memory + *piece.destination_bytes, bytes.data(), bytes.size());
          }
          REQUIRE(piece.first_chunk == chunks);
          for (; chunks < piece.end_chunk; ++chunks) {
            const client::ChunkRead& chunk = tile.chunks[chunks];
            REQUIRE(chunk.begin_bytes >= piece.begin_bytes);
            REQUIRE(chunk.begin_bytes + chunk.length_bytes <=
                    piece.begin_bytes + piece.length_bytes);
            if (piece.destination_bytes) continue;
            client::copy(chunk.copies, source.data() + chunk.begin_bytes, memory);
          }
        }
        REQUIRE(chunks == tile.chunks.size());
      }
      CHECK(fetched == plan->fetched_bytes);
      CHECK(got == mine);
    }
  });
}

TEST_CASE("read plan: parts of rows fetch little more than they need", "[unit]") {
  const auto from = layout::parse_mesh("2:r");
  REQUIRE(from.ok());
  const auto fetched = [&](std::uint64_t rows, std::uint64_t columns, std::uint32_t element,
                           const std::string& readers, const std::string& layout) {
    const ObjectTensor tensor{"w", "r;-", {rows, columns}, element, ""};
    const auto mesh = layout::parse_mesh(readers);
    REQUIRE(mesh.ok());
    double worst = 0;
    const auto wanted = boxes({*mesh, layout}, tensor.shape);
    for (std::uint32_t rank = 0; rank < wanted.size(); ++rank) {
      const std::uint64_t bytes = wanted[rank].elements() * element;
      const auto plan = plan_read(*from, {tensor}, Chunking::kGrid, *mesh, rank,
                                  {{{"w", layout, {}, 0, ""}, bytes}});
      REQUIRE(plan.ok());
      worst = std::max(worst, static_cast<double>(plan->fetched_bytes) /
                                  static_cast<double>(plan->needed_bytes));
    }
    return worst;
  };
  // Weights of 4 to 230 MiB, divided as tensor parallelism divides them.
  for (const std::string ways : {"2", "4", "8"}) {
    CHECK(fetched(2048, 2048, 2, ways + ":c", "-;c") == 1.0);
    CHECK(fetched(4096, 14336, 2, ways + ":c", "-;c") == 1.0);
    CHECK(fetched(28672, 4096, 2, ways + ":c", "-;c") == 1.0);
    CHECK(fetched(28672, 4096, 2, ways + ":c", "c;-") == 1.0);
  }
  CHECK(fetched(4096, 14336, 2, "3:c", "-;c") < 1.35);
  CHECK(fetched(50257, 1600, 2, "8:c", "-;c") < 1.2);
  CHECK(fetched(50257, 1600, 2, "4x2:a,b", "a;b") < 1.2);
}

TEST_CASE("read plan: equal layouts fetch each byte once", "[unit]") {
  const auto mesh = layout::parse_mesh("4x2:dp,tp");
  REQUIRE(mesh.ok());
  const ObjectTensor tensor{"w", "-;tp", {3000, 2000}, 4, "f32"};
  const auto chunking = GENERATE(Chunking::kRows, Chunking::kGrid);
  const auto plan =
      plan_read(*mesh, {tensor}, chunking, *mesh, 5, {{{"w", "-;tp", {}, 0, ""}, 12'000'000}});
  REQUIRE(plan.ok());
  CHECK(plan->fetched_bytes == plan->needed_bytes);
  REQUIRE(plan->tiles.size() == 1);
  const TileRead& tile = plan->tiles.front();
  CHECK(tile.position == 1);  // rank 1 stores what ranks 1, 3, 5 and 7 hold
  for (const client::PieceRead& piece : tile.pieces) {
    CHECK(piece.destination_bytes.has_value() == (chunking == Chunking::kRows));
  }
}

TEST_CASE("read plan: what is one run for both goes right to its place", "[unit]") {
  const auto mesh = layout::parse_mesh("2:r");
  REQUIRE(mesh.ok());
  const ObjectTensor tensor{"w", "r", {4'000'000}, 4, "f32"};
  const auto plan =
      plan_read(*mesh, {tensor}, Chunking::kGrid, *mesh, 1, {{{"w", "-", {}, 0, ""}, 16'000'000}});
  REQUIRE(plan.ok());
  CHECK(plan->fetched_bytes == plan->needed_bytes);
  REQUIRE(plan->tiles.size() == 2);
  std::uint64_t at = 0;
  for (const TileRead& tile : plan->tiles) {
    for (const client::PieceRead& piece : tile.pieces) {
      CHECK(piece.destination_bytes == at);
      at += piece.length_bytes;
    }
    CHECK(tile.pieces.size() == 8);  // 1 MiB each
  }
}

TEST_CASE("chunks: they divide a tile, in the order in which they are stored", "[unit]") {
  test::for_each_seed(test::seed_count(40), [&](std::uint64_t seed) {
    Prng random(seed);
    layout::Box tile;
    tile.dimensions = 1 + random.below(4);
    const std::uint64_t most =
        std::array<std::uint64_t, 4>{2'000'000, 1500, 120, 36}.at(tile.dimensions - 1);
    for (std::size_t d = 0; d < tile.dimensions; ++d) {
      const std::uint64_t begin = random.below(100);
      tile.sides[d] = {begin, begin + 1 + random.below(most)};
    }
    const std::uint64_t element = std::array<std::uint64_t, 5>{1, 2, 4, 8, 12}.at(random.below(5));
    const Chunking chunking = random.below(2) == 0 ? Chunking::kRows : Chunking::kGrid;
    const client::ChunkGrid chunks(tile, element, chunking);
    if (chunking == Chunking::kRows) CHECK(chunks.in_order());
    std::uint64_t at = 0;
    for (std::size_t c = 0; c < chunks.size(); ++c) {
      const layout::Box box = chunks.box(c);
      CHECK(chunks.offset_bytes(c) == at);
      CHECK(chunks.bytes(c) == box.elements() * element);
      CHECK(chunks.bytes(c) <= client::kObjectPieceBytes);
      CHECK(intersection(box, tile).elements() == box.elements());
      at += chunks.bytes(c);
      if (c > 0) CHECK(intersection(box, chunks.box(c - 1)).empty());
    }
    CHECK(at == tile.elements() * element);
    CHECK(chunks.offset_bytes(chunks.size()) == at);
    CHECK(chunks.size() <= 256 * 16);  // a half of each side at most, rounded up
    layout::Box part = tile;
    for (std::size_t d = 0; d < part.dimensions; ++d) {
      const std::uint64_t size = part.sides[d].size();
      part.sides[d].begin += random.below(size);
      part.sides[d].end -= random.below(part.sides[d].size());
    }
    std::vector<std::size_t> expected;
    for (std::size_t c = 0; c < chunks.size(); ++c) {
      if (!intersection(chunks.box(c), part).empty()) expected.push_back(c);
    }
    CHECK(chunks.touching(part) == expected);
  });
}

TEST_CASE("read plan: a tile that does not fit the object is refused", "[unit]") {
  const auto mesh = layout::parse_mesh("2:tp");
  REQUIRE(mesh.ok());
  const ObjectTensor tensor{"w", "tp;-", {10, 10}, 4, "f32"};
  const auto code = [&](const client::WantedTensor& wanted, std::uint32_t rank = 0) {
    const auto plan = plan_read(*mesh, {tensor}, Chunking::kRows, *mesh, rank, {wanted});
    return plan ? Errc::kOk : plan.error().code();
  };
  CHECK(code({{"w", "tp;-", {}, 0, ""}, 200}) == Errc::kOk);
  CHECK(code({{"v", "tp;-", {}, 0, ""}, 200}) == Errc::kNotFound);
  CHECK(code({{"w", "tp;-", {10, 11}, 0, ""}, 200}) == Errc::kConflict);
  CHECK(code({{"w", "tp;-", {}, 2, ""}, 200}) == Errc::kConflict);
  CHECK(code({{"w", "tp;-", {}, 0, "bf16"}, 200}) == Errc::kConflict);
  for (const char* const same : {"f32", "float32", "float"}) {
    CHECK(code({{"w", "tp;-", {}, 0, same}, 200}) == Errc::kOk);
  }
  CHECK(code({{"w", "tp;-", {}, 0, ""}, 201}) == Errc::kInvalidArgument);
  CHECK(code({{"w", "tp", {}, 0, ""}, 200}) == Errc::kInvalidArgument);
  CHECK(code({{"w", "tp;-+sum:tp", {}, 0, ""}, 200}) == Errc::kInvalidArgument);
  CHECK(code({{"w", "tp;-", {}, 0, ""}, 200}, 2) == Errc::kInvalidArgument);
}

TEST_CASE("chunks: the rules are those of FORMATS.md", "[unit]") {
  layout::Box tile;
  tile.dimensions = 2;
  tile.sides[0] = {0, 1000};
  tile.sides[1] = {0, 3000};
  const client::ChunkGrid rows(tile, 4, Chunking::kRows);
  CHECK(rows.size() == 16);  // 1000, 500, 250, 125, 63 rows of 12,000 bytes
  CHECK(rows.bytes(0) == 63 * 12'000);
  CHECK(rows.bytes(15) == 55 * 12'000);
  CHECK(rows.offset_bytes(2) == 126 * 12'000);
  const client::ChunkGrid grid(tile, 4, Chunking::kGrid);
  CHECK(grid.size() == 256);  // 63 x 188 elements each: 64 KiB at most
  CHECK(grid.bytes(0) == 63 * 188 * 4);
  CHECK(grid.box(17).sides[0].begin == 63);
  CHECK(grid.box(17).sides[1].begin == 188);
  CHECK(grid.box(17).sides[1].end == 376);
  CHECK(grid.offset_bytes(16) == 63 * 12'000);
  CHECK(grid.offset_bytes(17) == 63 * 12'000 + 63 * 188 * 4);
}

TEST_CASE("read plan: what a reader has already is left out", "[unit]") {
  const auto mesh = layout::parse_mesh("2:r");
  REQUIRE(mesh.ok());
  const ObjectTensor tensor{"w", "r", {4'000'000}, 4, "f32"};
  auto plan =
      plan_read(*mesh, {tensor}, Chunking::kRows, *mesh, 1, {{{"w", "-", {}, 0, ""}, 16'000'000}});
  REQUIRE(plan.ok());
  plan->leave_out(1);
  CHECK(plan->fetched_bytes == 8'000'000);
  REQUIRE(plan->tiles.size() == 1);
  CHECK(plan->tiles.front().position == 0);
}
