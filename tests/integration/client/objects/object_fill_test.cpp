// Publishing and reading tensor by tensor, in memory that tensors share, through the C ABI.
#include <hyperoffload/objects.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <hyperoffload/objects.hpp>
#include <vector>

#include "tests/integration/client/two_nodes.hpp"

namespace {

using namespace ho;
using hyperoffload::Publisher;
using hyperoffload::Subscriber;
using test::connect_pool;
using test::PoolHandle;
using test::TwoNodes;

constexpr std::uint64_t kRows = 600;
constexpr std::uint64_t kColumns = 1000;
constexpr std::array<std::uint64_t, 2> kShape{kRows, kColumns};
constexpr std::array<const char*, 3> kNames{"first", "second", "whole"};

using Tile = std::vector<std::uint32_t>;

std::uint32_t value(std::size_t tensor, std::uint64_t row, std::uint64_t column) {
  return static_cast<std::uint32_t>((tensor * kRows + row) * kColumns + column);
}

/// Three tensors; the last one has no layout.
std::vector<ho_tensor> tensors_in(const std::vector<std::uint32_t*>& memory, const char* layout,
                                  std::uint64_t bytes) {
  std::vector<ho_tensor> out;
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    ho_tensor& one = out.emplace_back();
    one.name = kNames[i];
    one.layout = i == 2 ? "" : layout;
    one.shape = kShape.data();
    one.dimensions = 2;
    one.element_bytes = 4;
    one.data = memory[i];
    one.bytes = i == 2 ? kRows * kColumns * 4 : bytes;
  }
  return out;
}

/// The object, by rows on two ranks.
class Source {
 public:
  explicit Source(ho_pool* pool) {
    ho_object_options options{};
    options.name = "source";
    options.mesh = "2:x";
    options.run = 5;
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      options.rank = rank;
      std::vector<std::uint32_t*> memory;
      for (std::size_t i = 0; i < kNames.size(); ++i) {
        Tile& tile = tiles_.emplace_back();
        const std::uint64_t rows = i == 2 ? kRows : kRows / 2;
        for (std::uint64_t at = 0; at < rows * kColumns; ++at) {
          const std::uint64_t begin = i == 2 ? 0 : rank * rows;
          tile.push_back(value(i, begin + at / kColumns, at % kColumns));
        }
        memory.push_back(tile.data());
      }
      publishers_.emplace_back(pool, options, tensors_in(memory, "x;-", kRows / 2 * kColumns * 4));
      publishers_.back().publish(3);
    }
  }

 private:
  std::vector<Tile> tiles_;
  std::vector<Publisher> publishers_;
};

/// What a publisher's `fill` works on.
struct Filling {
  ho_subscriber* from = nullptr;
  Tile* memory = nullptr;
  std::vector<std::size_t> filled;
  ho_status fails = HO_OK;  ///< for "second"
};

ho_status fill(void* context, std::size_t tensor) {
  auto& filling = *static_cast<Filling*>(context);
  filling.filled.push_back(tensor);
  if (tensor == 1 && filling.fails != HO_OK) return filling.fails;
  std::fill(filling.memory->begin(), filling.memory->end(), 0);  // no put reads it any more
  return ho_object_read_tensor(filling.from, tensor);
}

}  // namespace

TEST_CASE("objects: a version is laid out anew by way of memory for one tile", "[integration]") {
  TwoNodes nodes;
  const auto* const transport = GENERATE("local", "tcp");
  INFO(transport);
  const PoolHandle trainer = connect_pool(nodes.address(0), transport);
  const PoolHandle job =  // at a rate at which a put is not done at once
      connect_pool(nodes.address(1), transport, "anew", 50'000'000);
  const Source source(trainer.get());
  Tile shared(kRows * kColumns);
  REQUIRE(ho_register(job.get(), shared.data(), shared.size() * 4) == HO_OK);
  const std::vector<std::uint32_t*> memory(kNames.size(), shared.data());
  const auto tensors = tensors_in(memory, "-;y", kRows * kColumns / 2 * 4);
  std::vector<Subscriber> readers;
  std::vector<Publisher> publishers;
  std::vector<Filling> filling(2);
  ho_object_options options{};
  options.mesh = "2:y";
  options.run = 6;
  options.versions = 1;
  options.fill = fill;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    options.rank = rank;
    options.name = "source";
    readers.emplace_back(job.get(), options, tensors);
    REQUIRE(readers.back().acquire() == 3);
    options.name = "anew";
    filling[rank].from = readers.back().get();
    filling[rank].memory = &shared;
    options.fill_context = &filling[rank];
    publishers.emplace_back(job.get(), options, tensors);
  }
  filling[1].fails = HO_BUSY;
  publishers[0].publish(3);
  CHECK(filling[0].filled == std::vector<std::size_t>{0, 1, 2});
  CHECK(ho_publish(publishers[1].get(), 3) == HO_BUSY);
  Tile got(kRows * kColumns);
  ho_tensor all = tensors[0];
  all.layout = nullptr;
  all.data = got.data();
  all.bytes = got.size() * 4;
  ho_object_options whole{};
  whole.name = "anew";
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    all.name = kNames[i];
    Subscriber reader(trainer.get(), whole, {all});
    std::uint64_t version = 0;
    if (i == 0) {
      CHECK(ho_acquire(reader.get(), 0, UINT64_MAX, 0, &version) == HO_NOT_FOUND);
      filling[1].fails = HO_OK;
      filling[1].filled.clear();
      publishers[1].publish(3);
      CHECK(filling[1].filled == std::vector<std::size_t>{0, 1});  // rank 0 stores the third
    }
    REQUIRE(reader.acquire() == 3);
    reader.read();
    std::uint64_t wrong = 0;
    for (std::uint64_t at = 0; at < got.size(); ++at) {
      wrong += got[at] == value(i, at / kColumns, at % kColumns) ? 0 : 1;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("objects: in turns, nodes have as many bytes also where few ranks store",
          "[integration]") {
  TwoNodes nodes;
  const PoolHandle pool = connect_pool(nodes.address(0), "local");
  constexpr std::uint64_t kPartBytes = std::uint64_t{3} << 20U;  // two segments
  std::vector<std::byte> memory(kPartBytes);
  // Four parts, which the first rank along tp stores: every second or fourth one.
  const auto* const mesh = GENERATE("4x2:dp,tp", "4x4:dp,tp", "4x3:dp,tp");
  const std::uint32_t ranks = 4U * static_cast<std::uint32_t>(mesh[2] - '0');
  INFO(mesh);
  const std::array<std::uint64_t, 1> shape{4 * kPartBytes};
  ho_tensor tensor{};
  tensor.name = "t";
  tensor.layout = "dp";
  tensor.shape = shape.data();
  tensor.dimensions = 1;
  tensor.element_bytes = 1;
  tensor.data = memory.data();
  tensor.bytes = kPartBytes;
  ho_object_options options{};
  options.name = "dealt";
  options.mesh = mesh;
  options.run = 7;
  options.versions = 1;
  options.in_turns = 1;
  std::vector<Publisher> publishers;
  for (options.rank = 0; options.rank < ranks; ++options.rank) {
    publishers.emplace_back(pool.get(), options, std::vector{tensor});
  }
  CHECK(nodes.granted_bytes(0) == nodes.granted_bytes(1));
}

TEST_CASE("objects: one tensor is read, and the others' memory stays as it is", "[integration]") {
  TwoNodes nodes;
  const PoolHandle pool = connect_pool(nodes.address(0), "local");
  const Source source(pool.get());
  std::vector<Tile> tiles(3, Tile(kRows * kColumns, 7));
  ho_object_options options{};
  options.name = "source";
  Subscriber reader(
      pool.get(), options,
      tensors_in({tiles[0].data(), tiles[1].data(), tiles[2].data()}, "", kRows * kColumns * 4));
  CHECK(ho_object_read_tensor(reader.get(), 1) == HO_CONFLICT);
  REQUIRE(reader.acquire() == 3);
  reader.read_tensor(1);
  CHECK(tiles[1].back() == value(1, kRows - 1, kColumns - 1));
  const Tile before(kRows * kColumns, 7);
  CHECK((tiles[0] == before && tiles[2] == before));
  CHECK(ho_object_read_tensor(reader.get(), 3) == HO_OUT_OF_RANGE);
  options.mesh = "1:all";
  options.relay = "all";
  options.run = 9;
  Subscriber relayed(pool.get(), options, {});
  CHECK(ho_object_read_tensor(relayed.get(), 0) == HO_UNSUPPORTED);
}
