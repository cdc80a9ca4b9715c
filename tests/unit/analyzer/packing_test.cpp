#include "tools/analyzer/emit/packing.hpp"

#include <algorithm>
#include <catch2/catch.hpp>

#include "common/base/prng.hpp"

using namespace ho;
using analyzer::Block;
using analyzer::Packing;

namespace {

bool alive(const Block& block, std::int64_t p, std::int64_t positions) {
  for (const std::int64_t lap : {-positions, std::int64_t{0}, positions}) {
    if (block.begin <= p + lap && p + lap <= block.end) return true;
  }
  return false;
}

void check_disjoint(const std::vector<Block>& blocks, const Packing& packing,
                    std::int64_t positions) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    CHECK(packing.offsets[i] + blocks[i].bytes <= packing.height_bytes);
    for (std::size_t j = 0; j < i; ++j) {
      const bool apart = packing.offsets[i] + blocks[i].bytes <= packing.offsets[j] ||
                         packing.offsets[j] + blocks[j].bytes <= packing.offsets[i];
      if (apart) continue;
      for (std::int64_t p = 0; p < positions; ++p) {
        const bool both = alive(blocks[i], p, positions) && alive(blocks[j], p, positions);
        if (both) FAIL("blocks " << i << " and " << j << " share bytes at " << p);
      }
    }
  }
}

}  // namespace

TEST_CASE("packing: blocks alive together share no byte, also across the step's end") {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    Prng prng(seed);
    constexpr std::int64_t kPositions = 30;
    std::vector<Block> blocks;
    const std::uint64_t count = 1 + prng.below(40);
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto begin = static_cast<std::int64_t>(prng.below(2 * kPositions)) - kPositions;
      const auto length = static_cast<std::int64_t>(prng.below(kPositions));
      blocks.push_back({begin, begin + length, 1 + prng.below(100)});
    }
    INFO("seed " << seed);
    const Packing packing = analyzer::pack(blocks, kPositions, 0);
    CHECK(packing.height_bytes >= packing.load_bytes);
    check_disjoint(blocks, packing, kPositions);
  }
}

TEST_CASE("packing: the sweep for many blocks keeps them apart too") {
  Prng prng(7);
  constexpr std::int64_t kPositions = 4000;
  std::vector<Block> blocks;
  for (int i = 0; i < 7000; ++i) {
    const auto begin = static_cast<std::int64_t>(prng.below(kPositions));
    const auto length = static_cast<std::int64_t>(prng.below(40));
    blocks.push_back({begin, begin + length, 64 * (1 + prng.below(50))});
  }
  const Packing packing = analyzer::pack(blocks, kPositions, 0);
  CHECK(packing.height_bytes >= packing.load_bytes);
  std::vector<std::vector<std::uint32_t>> at(kPositions);
  for (std::uint32_t i = 0; i < blocks.size(); ++i) {
    for (std::int64_t p = blocks[i].begin; p <= blocks[i].end; ++p) {
      at[static_cast<std::size_t>(p % kPositions)].push_back(i);
    }
  }
  for (auto& list : at) {
    std::sort(list.begin(), list.end(), [&](std::uint32_t a, std::uint32_t b) {
      return packing.offsets[a] < packing.offsets[b];
    });
    for (std::size_t i = 1; i < list.size(); ++i) {
      if (packing.offsets[list[i - 1]] + blocks[list[i - 1]].bytes > packing.offsets[list[i]]) {
        FAIL("overlap of " << list[i - 1] << " and " << list[i]);
      }
    }
  }
}

TEST_CASE("packing: equal blocks in turn need no more than the largest live set") {
  std::vector<Block> blocks;
  for (std::int64_t i = 0; i < 20; ++i) blocks.push_back({i, i + 3, 64});
  CHECK(analyzer::pack(blocks, 30, 0).height_bytes == 256);
}
