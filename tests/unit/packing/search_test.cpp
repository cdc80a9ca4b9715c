#include <catch2/catch.hpp>

#include "tests/unit/packing/problems.hpp"
#include "tools/analyzer/packing/ejection.hpp"
#include "tools/analyzer/packing/exact.hpp"
#include "tools/analyzer/packing/restarts.hpp"

using namespace ho;
using packing::Instance;
using packing::Layout;
using packing::Outcome;

TEST_CASE("exact search: finds the optimum and proves that there is nothing below it") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const std::int64_t cycle = seed % 2 == 0 ? 0 : 12;
    INFO("seed " << seed);
    const auto lifetimes = test::random_lifetimes(seed, 7, 12, cycle, 12);
    const std::int64_t best = test::optimum(lifetimes, cycle);
    const packing::Parts parts = packing::cut(lifetimes, cycle);
    bool lower = !parts.parts.empty();
    for (std::size_t p = 0; p < parts.parts.size(); ++p) {
      const Instance& instance = parts.parts[p].instance;
      packing::Restarts restarts(instance, std::vector<double>(instance.items.size(), 1));
      packing::Budget budget(UINT64_MAX);
      REQUIRE(restarts.run(best - parts.base_bytes[p], budget) == Outcome::kFound);
      CHECK(test::is_packing(instance, restarts.layout()));
      CHECK(restarts.layout().height_bytes <= best - parts.base_bytes[p]);
      const Outcome below = restarts.run(best - 1 - parts.base_bytes[p], budget);
      CHECK(below != Outcome::kStopped);
      lower = lower && below == Outcome::kFound;
    }
    for (std::size_t i = 0; i < lifetimes.size(); ++i) {
      if (parts.fixed_offsets[i] + lifetimes[i].bytes == best) lower = false;
    }
    CHECK_FALSE(lower);
  }
}

TEST_CASE("exact search: sizes beyond 30 bits lose less than a millionth") {
  std::vector<packing::Lifetime> lifetimes;
  for (const auto& each : test::cut_rectangle(3, 20, 50, 1'000'003)) {
    lifetimes.push_back({each.begin, each.end, each.bytes * 1'000'003 + 1});
  }
  const packing::Parts parts = packing::cut(lifetimes, 0);
  for (const packing::Part& part : parts.parts) {
    packing::Restarts restarts(part.instance, std::vector<double>(part.instance.items.size(), 1));
    packing::Budget budget(2'000'000'000);
    const std::int64_t load = part.instance.load_bytes;
    REQUIRE(restarts.run(load + load / 1'000'000, budget) == Outcome::kFound);
    CHECK(test::is_packing(part.instance, restarts.layout()));
    CHECK(restarts.layout().height_bytes <= load + load / 1'000'000);
  }
}

TEST_CASE("exact search: rectangles cut into pieces are assembled again") {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    INFO("seed " << seed);
    const auto lifetimes = test::cut_rectangle(seed, 40, 200, 1000);
    const packing::Parts parts = packing::cut(lifetimes, 0);
    for (std::size_t p = 0; p < parts.parts.size(); ++p) {
      const Instance& instance = parts.parts[p].instance;
      packing::Restarts restarts(instance, std::vector<double>(instance.items.size(), 1));
      packing::Budget budget(20'000'000'000);
      REQUIRE(restarts.run(1000 - parts.base_bytes[p], budget) == Outcome::kFound);
      CHECK(test::is_packing(instance, restarts.layout()));
    }
  }
}

TEST_CASE("ejection search: a found packing is within the capacity and shares no byte") {
  int found = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const std::int64_t cycle = seed % 2 == 0 ? 0 : 100;
    INFO("seed " << seed);
    const auto lifetimes = test::random_lifetimes(seed, 60, 100, cycle, 100);
    const packing::Parts parts = packing::cut(lifetimes, cycle);
    for (const packing::Part& part : parts.parts) {
      const packing::Neighbours neighbours(part.instance);
      packing::EjectionSearch search(part.instance, neighbours);
      const std::int64_t capacity = part.instance.load_bytes + part.instance.load_bytes / 20;
      packing::Budget budget(50'000'000);
      if (!search.run(packing::place_by_sweep(part.instance), capacity, budget)) continue;
      ++found;
      CHECK(test::is_packing(part.instance, search.layout()));
      CHECK(search.layout().height_bytes <= capacity);
    }
  }
  CHECK(found > 20);
}

TEST_CASE("greedy packing: the sweep and every order share no byte") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const std::int64_t cycle = seed % 2 == 0 ? 0 : 80;
    INFO("seed " << seed);
    const auto lifetimes = test::random_lifetimes(seed, 50, 80, cycle, 100);
    const packing::Parts parts = packing::cut(lifetimes, cycle);
    for (const packing::Part& part : parts.parts) {
      CHECK(test::is_packing(part.instance, packing::place_by_sweep(part.instance)));
      const packing::Neighbours neighbours(part.instance);
      const std::vector<std::int64_t> nothing(part.instance.items.size(), -1);
      for (const packing::Order order : packing::kOrders) {
        packing::Budget budget(UINT64_MAX);
        CHECK(test::is_packing(
            part.instance,
            packing::place_in_order(part.instance, neighbours,
                                    packing::greedy_order(part.instance, order), nothing, budget)));
      }
    }
  }
}
