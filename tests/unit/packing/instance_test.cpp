#include "tools/analyzer/packing/instance.hpp"

#include <catch2/catch.hpp>
#include <set>

#include "tests/unit/packing/problems.hpp"
#include "tools/analyzer/packing/neighbours.hpp"

using namespace ho;
using packing::Lifetime;
using packing::Parts;

namespace {

std::int64_t load_by_hand(const std::vector<Lifetime>& lifetimes, std::int64_t cycle) {
  std::int64_t peak = 0;
  for (std::int64_t t = 0; t < 200; ++t) {
    std::int64_t sum = 0;
    for (const Lifetime& each : lifetimes) {
      if (test::together(each, {t, t + 1, 1}, cycle)) sum += each.bytes;
    }
    peak = std::max(peak, sum);
  }
  return peak;
}

}  // namespace

TEST_CASE("packing cut: items of a part meet exactly where their lifetimes do") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const std::int64_t cycle = seed % 2 == 0 ? 0 : 40;
    INFO("seed " << seed);
    const auto lifetimes = test::random_lifetimes(seed, 15, 40, cycle, 9);
    const Parts parts = packing::cut(lifetimes, cycle);
    CHECK(parts.load_bytes == load_by_hand(lifetimes, cycle));
    std::vector<int> part_of(lifetimes.size(), -1);
    for (std::size_t p = 0; p < parts.parts.size(); ++p) {
      const packing::Part& part = parts.parts[p];
      for (std::size_t a = 0; a < part.ids.size(); ++a) {
        part_of[part.ids[a]] = static_cast<int>(p);
        CHECK(part.instance.items[a].bytes == lifetimes[part.ids[a]].bytes);
        for (std::size_t b = 0; b < a; ++b) {
          CHECK(meet(part.instance.items[a], part.instance.items[b]) ==
                test::together(lifetimes[part.ids[a]], lifetimes[part.ids[b]], cycle));
        }
      }
    }
    for (std::size_t a = 0; a < lifetimes.size(); ++a) {
      CHECK((part_of[a] < 0) == (parts.fixed_offsets[a] >= 0));
      for (std::size_t b = 0; b < a; ++b) {
        if (part_of[a] < 0 || part_of[b] < 0 || part_of[a] == part_of[b]) continue;
        CHECK_FALSE(test::together(lifetimes[a], lifetimes[b], cycle));
      }
    }
  }
}

TEST_CASE("packing cut: buffers that live throughout are at the bottom, the rest is divided") {
  const Parts parts = packing::cut({{0, 10, 5}, {0, 5, 3}, {5, 10, 4}, {0, 10, 2}}, 0);
  CHECK(parts.parts.empty());
  CHECK(parts.fixed_offsets == std::vector<std::int64_t>{0, 7, 7, 5});
  CHECK(parts.load_bytes == 11);
}

TEST_CASE("packing core: buffers of heavy sections, above those alive in all of them") {
  const Parts parts =
      packing::cut({{0, 4, 1}, {2, 8, 10}, {3, 6, 10}, {6, 9, 10}, {8, 12, 1}, {5, 6, 1}}, 0);
  REQUIRE(parts.parts.size() == 1);
  const packing::Part& part = parts.parts[0];
  const packing::Core core = packing::core_of(part.instance, 20);
  REQUIRE(core.bottom.size() == 1);
  CHECK(part.ids[core.bottom[0]] == 1);
  CHECK(core.items.size() == 4);
  CHECK(core.cycle == 0);
  for (std::size_t a = 0; a < core.items.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      CHECK(test::together(core.lifetimes[a], core.lifetimes[b], 0) ==
            meet(part.instance.items[core.items[a]], part.instance.items[core.items[b]]));
    }
  }
}

TEST_CASE("packing neighbours: each meeting item comes once, also round the cycle's end") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const std::int64_t cycle = seed % 2 == 0 ? 0 : 500;
    INFO("seed " << seed);
    const auto lifetimes = test::random_lifetimes(seed, 150, 500, cycle, 9);
    const Parts parts = packing::cut(lifetimes, cycle);
    for (const packing::Part& part : parts.parts) {
      const packing::Neighbours neighbours(part.instance);
      const auto& items = part.instance.items;
      for (std::uint32_t i = 0; i < items.size(); ++i) {
        std::multiset<std::uint32_t> found;
        std::multiset<std::uint32_t> wanted;
        neighbours.each(i, [&](std::uint32_t j) { found.insert(j); });
        for (std::uint32_t j = 0; j < items.size(); ++j) {
          if (j != i && meet(items[i], items[j])) wanted.insert(j);
        }
        CHECK(found == wanted);
      }
    }
  }
}
