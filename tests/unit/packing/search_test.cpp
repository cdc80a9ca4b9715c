#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "tests/unit/packing/problems.hpp"
#include "tools/analyzer/packing/ejection.hpp"
#include "tools/analyzer/packing/exact.hpp"
#include "tools/analyzer/packing/placed_items.hpp"
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

TEST_CASE("placed items: those around another come in the order of their offsets") {
  std::set<bool> kinds;  // each meets few of the others, or many: both ways to find them
  for (const bool many : {false, true}) {
    for (const std::int64_t cycle : {0, 5000}) {
      auto lifetimes = test::random_lifetimes(7, 900, 5000, cycle, 9);
      for (packing::Lifetime& each : lifetimes) {
        if (!many) each.end = each.begin + 1 + (each.end - each.begin) / 50;
      }
      for (const packing::Part& part : packing::cut(lifetimes, cycle).parts) {
        const auto& items = part.instance.items;
        const packing::Neighbours neighbours(part.instance);
        if (items.size() > 300) kinds.insert(neighbours.dense());
        packing::PlacedItems placed(part.instance, neighbours,
                                    std::vector<std::int64_t>(items.size(), -1));
        Prng random(11);
        for (int change = 0; change < 3000; ++change) {
          const auto i = static_cast<std::uint32_t>(random.below(items.size()));
          if (placed.offsets()[i] >= 0) {
            if (random.below(3) == 0) placed.remove(i);
            continue;
          }
          std::set<std::uint32_t> found;
          std::int64_t last = 0;
          placed.around(i, [&](const packing::PlacedItems::Taken& each) {
            CHECK(each.low >= last);
            last = each.low;
            CHECK(each.low == placed.offsets()[each.item]);
            CHECK(each.top == each.low + items[each.item].bytes);
            CHECK(found.insert(each.item).second);
            return true;
          });
          std::set<std::uint32_t> wanted;
          for (std::uint32_t j = 0; j < items.size(); ++j) {
            if (placed.offsets()[j] >= 0 && meet(items[i], items[j])) wanted.insert(j);
          }
          CHECK(found == wanted);
          int visits = 0;
          placed.around(i, [&](const auto&) { return ++visits < 2; });
          CHECK(visits == static_cast<int>(std::min<std::size_t>(2, wanted.size())));
          placed.add(i, static_cast<std::int64_t>(random.below(40)));  // many are equal
        }
      }
    }
  }
  CHECK(kinds.size() == 2);
}
