#include "tools/compare/lru_cache.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

#include "common/base/prng.hpp"
#include "common/base/units.hpp"

namespace ho::gpt {
namespace {

Graph storages(const std::vector<std::uint64_t>& sizes) {
  Graph graph;
  for (const std::uint64_t bytes : sizes) {
    const auto id = static_cast<std::uint32_t>(graph.storages.size());
    graph.storages.push_back(
        Storage{id, "s" + std::to_string(id), bytes, StorageKind::kActivation, false, false});
  }
  return graph;
}

StorageIndex at(std::uint32_t index) { return StorageIndex(index); }

TEST_CASE("lru cache: the least recently used storage makes room", "[unit]") {
  LruCache cache(storages({64, 64, 64, 64}), 192);
  for (const std::uint32_t s : {0U, 1U, 2U}) REQUIRE(cache.place(at(s))->evictions.empty());
  cache.touch(at(0));
  cache.mark_dirty(at(1));
  const auto placement = cache.place(at(3));
  REQUIRE(placement->evictions.size() == 1);
  REQUIRE(placement->evictions[0].storage == at(1));
  REQUIRE(placement->evictions[0].dirty);
  REQUIRE(placement->offset_bytes == placement->evictions[0].offset_bytes);
  REQUIRE_FALSE(cache.resident(at(1)));
}

TEST_CASE("lru cache: a window of neighbours leaves rather than scattered storages", "[unit]") {
  // Used in the order 0 2 1 3. By age alone 0 and 2 would leave, which do not touch.
  LruCache cache(storages({64, 64, 64, 64, 128}), 256);
  for (const std::uint32_t s : {0U, 1U, 2U, 3U}) (void)cache.place(at(s));
  for (const std::uint32_t s : {0U, 2U, 1U, 3U}) cache.touch(at(s));
  const auto placement = cache.place(at(4));
  REQUIRE(placement->evictions.size() == 2);
  REQUIRE(cache.resident(at(3)));
  REQUIRE(cache.resident(at(4)));
}

TEST_CASE("lru cache: pinned storages stay, and without a window nothing changes", "[unit]") {
  LruCache cache(storages({64, 64, 64, 128}), 192);
  for (const std::uint32_t s : {0U, 1U, 2U}) (void)cache.place(at(s));
  cache.pin(at(1));
  REQUIRE_FALSE(cache.place(at(3)));
  for (const std::uint32_t s : {0U, 1U, 2U}) REQUIRE(cache.resident(at(s)));
}

TEST_CASE("lru cache: the next dirty victim is cleaned ahead, and then leaves without a write",
          "[unit]") {
  LruCache cache(storages({64, 64, 64, 64}), 192);
  for (const std::uint32_t s : {0U, 1U, 2U}) {
    (void)cache.place(at(s));
    cache.mark_dirty(at(s));
  }
  cache.pin(at(0));
  REQUIRE(cache.next_to_clean(64) == at(1));  // 0 is older but pinned
  const std::uint64_t version = cache.version(at(1));
  cache.mark_dirty(at(1));
  REQUIRE(cache.version(at(1)) != version);
  cache.mark_clean(at(1));
  REQUIRE_FALSE(cache.next_to_clean(64));  // 64 bytes can leave without a write
  REQUIRE(cache.next_to_clean(65) == at(2));
  const auto placement = cache.place(at(3));
  REQUIRE(placement->evictions.size() == 1);
  REQUIRE(placement->evictions[0].storage == at(1));
  REQUIRE_FALSE(placement->evictions[0].dirty);
}

TEST_CASE("lru cache: compaction joins what pinned storages have split", "[unit]") {
  LruCache cache(storages({64, 64, 64, 128}), 192);
  for (const std::uint32_t s : {0U, 1U, 2U}) (void)cache.place(at(s));
  cache.pin(at(1));
  cache.pin(at(3));
  REQUIRE(cache.evict_unpinned().size() == 2);
  REQUIRE_FALSE(cache.place(at(3)));
  const auto moves = cache.compact();
  REQUIRE(moves.size() == 1);
  REQUIRE(moves[0].from_bytes == 64);
  REQUIRE(moves[0].to_bytes == 0);
  REQUIRE(cache.place(at(3))->offset_bytes == 64);
}

TEST_CASE("lru cache: random use never overlaps residents nor leaves the arena", "[unit]") {
  Prng prng(99);
  std::vector<std::uint64_t> sizes;
  for (int i = 0; i < 40; ++i) sizes.push_back(1 + prng.below(4096));
  const Graph graph = storages(sizes);
  constexpr std::uint64_t kArena = 16384;
  LruCache cache(graph, kArena);
  for (int round = 0; round < 5000; ++round) {
    const StorageIndex storage = at(static_cast<std::uint32_t>(prng.below(sizes.size())));
    if (cache.resident(storage)) {
      if (prng.below(4) == 0) cache.drop(storage);
      continue;
    }
    REQUIRE(cache.place(storage));
    std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
    for (std::uint32_t s = 0; s < sizes.size(); ++s) {
      if (!cache.resident(at(s))) continue;
      const std::uint64_t begin = cache.offset_bytes(at(s));
      REQUIRE(begin % 64 == 0);
      ranges.emplace_back(begin, begin + align_up(sizes[s], 64));
    }
    std::sort(ranges.begin(), ranges.end());
    for (std::size_t i = 0; i + 1 < ranges.size(); ++i) {
      REQUIRE(ranges[i].second <= ranges[i + 1].first);
    }
    REQUIRE(ranges.back().second <= kArena);
    REQUIRE(cache.peak_bytes() >= ranges.back().second);
  }
}

}  // namespace
}  // namespace ho::gpt
