#include "tools/analyzer/packing/layers.hpp"

#include <catch2/catch.hpp>

#include "tests/unit/packing/problems.hpp"
#include "tools/analyzer/packing/placed_by_time.hpp"
#include "tools/analyzer/packing/solve.hpp"
#include "tools/analyzer/packing/validate.hpp"

using namespace ho;
using packing::Layout;

namespace {

/// The buffers of a deep network's step: layers that live from a forward op to its backward op,
/// workspaces of one op, and values passed from op to op, so that no buffer lives throughout.
std::vector<packing::Lifetime> nested(std::int64_t layers) {
  std::vector<packing::Lifetime> out;
  for (std::int64_t i = 0; i < layers; ++i) {
    out.push_back({i + 5, 2 * layers - i + 5, 8 + 8 * (i % 2)});
    out.push_back({i + 5, i + 6, 3});
    out.push_back({2 * layers - i + 4, 2 * layers - i + 5, 5});
  }
  for (std::int64_t i = -5; i < 2 * layers; i += 4) out.push_back({i + 5, i + 13, 16});
  return out;
}

}  // namespace

TEST_CASE("layers: every packing is disjoint, on a line and on a cycle, whatever is long") {
  int packed = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const std::int64_t cycle = seed % 2 == 0 ? 0 : 50;
    INFO("seed " << seed);
    auto lifetimes = test::random_lifetimes(seed, 60, 50, cycle, 1 + seed % 40);
    for (std::size_t i = 0; i < lifetimes.size(); i += 2) {  // and as many short ones
      lifetimes[i].end = std::min(lifetimes[i].end, lifetimes[i].begin + 1 + (cycle == 0 ? 0 : 2));
    }
    const packing::Parts parts = packing::cut(lifetimes, cycle);
    for (const packing::Part& part : parts.parts) {
      const Layout by_size = packing::place_by_size(part.instance);
      REQUIRE(test::is_packing(part.instance, by_size));
      for (const std::int64_t long_sections : {0, 1, 4, 16, 1000}) {
        packing::Budget budget(UINT64_MAX);
        const Layout layout = packing::place_in_layers(part.instance, long_sections, 0, budget);
        REQUIRE(test::is_packing(part.instance, layout));
        REQUIRE(layout.height_bytes >= part.instance.load_bytes);
        ++packed;
      }
    }
  }
  CHECK(packed > 500);
}

TEST_CASE("layers: best fit by time gives what best fit among neighbours gives, item by item") {
  int packed = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    // Many windows: most lifetimes are short, some span a part of the time or all of it. With the
    // larger count, also windows of windows.
    const bool large = seed % 20 >= 18;
    const std::int64_t span = large ? 30'000 : 3000;
    const std::int64_t cycle = seed % 2 == 0 ? 0 : span;
    auto lifetimes = test::random_lifetimes(seed, large ? 4000 : 400, span, cycle, 1 + seed % 50);
    for (std::size_t i = 0; i < lifetimes.size(); ++i) {
      const auto longest = i % 8 == 0 ? span : static_cast<std::int64_t>(1 + i % 40);
      lifetimes[i].end = std::min(lifetimes[i].end, lifetimes[i].begin + longest);
    }
    INFO("seed " << seed);
    for (const packing::Part& part : packing::cut(lifetimes, cycle).parts) {
      const packing::Instance& instance = part.instance;
      const packing::Neighbours neighbours(instance);
      for (const packing::Order order : {packing::Order::kBytes, packing::Order::kLengthClass}) {
        packing::Budget budget(UINT64_MAX);
        const auto by = packing::greedy_order(instance, order);
        const Layout all = packing::place_in_order(
            instance, neighbours, by, std::vector<std::int64_t>(instance.items.size(), -1), budget);
        const Layout layout = packing::place_by_time(instance, by, budget);
        REQUIRE(layout.offsets == all.offsets);
        REQUIRE(layout.height_bytes == all.height_bytes);
        ++packed;
      }
    }
  }
  CHECK(packed > 100);
}

TEST_CASE("layers: best fit by time gives nothing where its budget ends before") {
  const packing::Parts parts = packing::cut(nested(300), 0);
  const auto order = packing::greedy_order(parts.parts[0].instance, packing::Order::kBytes);
  packing::Budget none(1000);
  CHECK(packing::place_by_time(parts.parts[0].instance, order, none).offsets.empty());
}

TEST_CASE("layers: 40,000 random buffers of all sizes are packed within 8 % of their load") {
  // Some hundred alive at a time. Real steps have few sizes and need less: 1 to 3 %.
  Prng prng(1);
  constexpr std::int64_t kCycle = 20'000;
  std::vector<packing::Lifetime> lifetimes;
  for (int i = 0; i < 40'000; ++i) {
    const auto begin = static_cast<std::int64_t>(prng.below(kCycle));
    const std::uint64_t longest = i % 20 == 0 ? 4000 : 12;
    const auto length = 1 + static_cast<std::int64_t>(prng.below(longest));
    const auto bytes = 1 + static_cast<std::int64_t>(prng.below(900));
    lifetimes.push_back({begin, begin + length, bytes});
  }
  packing::Budget budget(220'000'000);  // the budget of an analysis
  const packing::Solution solution = packing::solve(lifetimes, kCycle, {0, 1.0}, budget);
  CHECK(static_cast<double>(solution.height_bytes) <=
        1.08 * static_cast<double>(solution.load_bytes));
}

TEST_CASE("layers: sizes whose peaks coincide are packed at the load by their regions") {
  const auto lifetimes = nested(500);
  const packing::Parts parts = packing::cut(lifetimes, 0);
  REQUIRE(parts.parts.size() == 1);
  const Layout layout = packing::place_by_size(parts.parts[0].instance);
  REQUIRE(test::is_packing(parts.parts[0].instance, layout));
  // At the peak one workspace of each kind and one passed value may be missing.
  CHECK(layout.height_bytes <= parts.parts[0].instance.load_bytes + 3 + 5 + 16);
}

TEST_CASE("layers: a budget that ends before gives nothing, and many sizes have no regions") {
  const packing::Parts parts = packing::cut(nested(300), 0);
  packing::Budget none(1000);
  CHECK(packing::place_in_layers(parts.parts[0].instance, 4, 0, none).offsets.empty());
  std::vector<packing::Lifetime> all_sizes;
  for (std::int64_t i = 0; i < 400; ++i) all_sizes.push_back({i, i + 20, 100 + i});
  const packing::Parts other = packing::cut(all_sizes, 0);
  REQUIRE_FALSE(other.parts.empty());
  CHECK(packing::place_by_size(other.parts[0].instance).offsets.empty());
}

TEST_CASE("layers: 60,000 nested buffers are packed near their load within a small budget") {
  const auto lifetimes = nested(20'000);
  packing::Budget budget(500'000'000);
  const packing::Solution solution = packing::solve(lifetimes, 0, {0, 1.0}, budget);
  CHECK(static_cast<double>(solution.height_bytes) <=
        1.001 * static_cast<double>(solution.load_bytes));
  std::vector<packing::Buffer> buffers;
  for (const auto& each : lifetimes) buffers.push_back({"", each.begin, each.end, each.bytes});
  CHECK_FALSE(packing::find_violation(buffers, solution.offsets, solution.height_bytes));
}

TEST_CASE("layers: 30,000 buffers on a cycle, some round its end, share no byte") {
  Prng prng(7);
  constexpr std::int64_t kCycle = 4000;
  std::vector<packing::Lifetime> lifetimes;
  for (int i = 0; i < 30'000; ++i) {
    const auto begin = static_cast<std::int64_t>(prng.below(kCycle));
    const std::uint64_t longest = i % 10 == 0 ? kCycle / 2 : 6;
    const auto length = 1 + static_cast<std::int64_t>(prng.below(longest));
    lifetimes.push_back({begin, begin + length, 1 + static_cast<std::int64_t>(prng.below(900))});
  }
  for (const std::uint64_t work : {1'000ULL, 3'000'000ULL, 20'000'000ULL, 400'000'000ULL}) {
    packing::Budget budget(work);
    const packing::Solution solution = packing::solve(lifetimes, kCycle, {0, 1.0}, budget);
    // Unrolled: a buffer that spans the end of the cycle also lives at its begin.
    std::vector<packing::Buffer> line;
    std::vector<std::int64_t> offsets;
    for (std::size_t i = 0; i < lifetimes.size(); ++i) {
      const packing::Lifetime& each = lifetimes[i];
      line.push_back({"", each.begin, std::min(each.end, kCycle), each.bytes});
      offsets.push_back(solution.offsets[i]);
      if (each.end <= kCycle) continue;
      line.push_back({"", 0, each.end - kCycle, each.bytes});
      offsets.push_back(solution.offsets[i]);
    }
    INFO("work " << work);
    CHECK_FALSE(packing::find_violation(line, offsets, solution.height_bytes));
  }
}
