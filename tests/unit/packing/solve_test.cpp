#include "tools/analyzer/packing/solve.hpp"

#include <catch2/catch.hpp>

#include "tests/unit/packing/problems.hpp"

using namespace ho;
using packing::Budget;
using packing::Solution;

TEST_CASE("packing: small problems reach the optimum of exhaustive search") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const std::int64_t cycle = seed % 2 == 0 ? 0 : 15;
    INFO("seed " << seed);
    const auto lifetimes = test::random_lifetimes(seed, 7, 15, cycle, 20);
    Budget budget(30'000'000);
    const Solution solution = packing::solve(lifetimes, cycle, {}, budget);
    CHECK(test::disjoint(lifetimes, solution.offsets, cycle));
    CHECK(solution.height_bytes == test::optimum(lifetimes, cycle));
  }
}

TEST_CASE("packing: stops at the first height that is enough") {
  const auto lifetimes = test::random_lifetimes(5, 200, 300, 0, 100);
  Budget little(1);
  const Solution first = packing::solve(lifetimes, 0, {}, little);
  CHECK(test::disjoint(lifetimes, first.offsets, 0));
  Budget plenty(100'000'000);
  const Solution same = packing::solve(lifetimes, 0, {.height_bytes = first.height_bytes}, plenty);
  CHECK(same.offsets == first.offsets);
  CHECK(plenty.left() > 99'000'000);
}

TEST_CASE("packing: the same problem and work give the same offsets") {
  const auto lifetimes = test::random_lifetimes(9, 120, 200, 0, 1000);
  Budget one(50'000'000);
  Budget two(50'000'000);
  CHECK(packing::solve(lifetimes, 0, {}, one).offsets ==
        packing::solve(lifetimes, 0, {}, two).offsets);
}

TEST_CASE("packing: an empty problem has height 0") {
  Budget budget(1000);
  const Solution solution = packing::solve({}, 0, {}, budget);
  CHECK(solution.height_bytes == 0);
  CHECK(solution.load_bytes == 0);
}

TEST_CASE("packing: nested lifetimes of a training step meet the load") {
  std::vector<packing::Lifetime> lifetimes;
  for (std::int64_t layer = 0; layer < 300; ++layer) {
    lifetimes.push_back({2 * layer, 1200 - 2 * layer, 64 * (1 + layer % 7)});  // activation
    lifetimes.push_back({2 * layer, 2 * layer + 1, 4096});                     // workspace
    lifetimes.push_back({1200 - 2 * layer - 2, 1200 - 2 * layer + 2, 1024});   // gradient
  }
  Budget budget(2'000'000'000);
  const Solution solution = packing::solve(lifetimes, 0, {}, budget);
  CHECK(test::disjoint(lifetimes, solution.offsets, 0));
  CHECK(solution.height_bytes == solution.load_bytes);
}

TEST_CASE("packing: a spent budget still gives a packing of many buffers") {
  const auto lifetimes = test::random_lifetimes(1, 3000, 100'000, 100'000, 1 << 20);
  Budget budget(1);
  const Solution solution = packing::solve(lifetimes, 100'000, {}, budget);
  CHECK(test::disjoint(lifetimes, solution.offsets, 100'000));
  CHECK(solution.height_bytes >= solution.load_bytes);
}

TEST_CASE("packing: offsets keep what divides all sizes, also where bytes are too many to count") {
  constexpr std::int64_t kAlign = 64;
  std::size_t misaligned = 0;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    auto lifetimes = test::random_lifetimes(seed, 20, 15, 15, 20);
    // Up to 67 GB each, with no larger common divisor.
    for (packing::Lifetime& each : lifetimes) each.bytes = kAlign * (each.bytes * 52'430'900 + 1);
    Budget budget(20'000'000);
    const Solution solution = packing::solve(lifetimes, 15, {}, budget);
    CHECK(test::disjoint(lifetimes, solution.offsets, 15));
    for (const std::int64_t offset : solution.offsets) misaligned += offset % kAlign == 0 ? 0 : 1;
  }
  CHECK(misaligned == 0);
}
