#include "tools/analyzer/packing/validate.hpp"

#include <catch2/catch.hpp>

#include "common/base/prng.hpp"
#include "tests/unit/packing/problems.hpp"
#include "tools/analyzer/packing/solve.hpp"

using namespace ho;
using packing::Buffer;
using packing::find_violation;

namespace {

std::vector<Buffer> named(const std::vector<packing::Lifetime>& lifetimes) {
  std::vector<Buffer> out;
  for (const packing::Lifetime& each : lifetimes) {
    out.push_back({"b" + std::to_string(out.size()), each.begin, each.end, each.bytes});
  }
  return out;
}

}  // namespace

TEST_CASE("packing validator: touching in time or in space is allowed") {
  const std::vector<Buffer> buffers{{"a", 0, 2, 4}, {"b", 2, 3, 4}, {"c", 0, 3, 2}};
  CHECK_FALSE(find_violation(buffers, {0, 0, 4}, 6).has_value());
}

TEST_CASE("packing validator: every kind of overlap is found and both parties named") {
  const std::vector<Buffer> buffers{{"big", 0, 9, 8}, {"small", 4, 5, 2}};
  for (const std::int64_t offset : {0, 3, 6, 7}) {
    INFO(offset);
    const auto violation = find_violation(buffers, {0, offset}, 100);
    REQUIRE(violation.has_value());
    CHECK(violation->find("big") != std::string::npos);
    CHECK(violation->find("small") != std::string::npos);
  }
  CHECK(find_violation(buffers, {1, 0}, 100).has_value());
  CHECK_FALSE(find_violation(buffers, {0, 8}, 100).has_value());
}

TEST_CASE("packing validator: a buffer above the height or without an offset is found") {
  const std::vector<Buffer> buffers{{"a", 0, 2, 4}};
  CHECK(find_violation(buffers, {1}, 4).has_value());
  CHECK(find_violation(buffers, {0}, 3).has_value());
  CHECK(find_violation(buffers, {-1}, 4).has_value());
  CHECK(find_violation(buffers, {}, 4).has_value());
  CHECK(find_violation(buffers, {INT64_MAX}, INT64_MAX).has_value());
}

TEST_CASE("packing validator: agrees with a comparison of all pairs on mutated packings") {
  int refused = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    INFO("seed " << seed);
    const auto lifetimes = test::random_lifetimes(seed, 12, 20, 0, 50);
    packing::Budget budget(1'000'000);
    auto offsets = packing::solve(lifetimes, 0, {}, budget).offsets;
    CHECK_FALSE(find_violation(named(lifetimes), offsets, 1000).has_value());
    Prng prng(seed);
    offsets[prng.below(offsets.size())] += static_cast<std::int64_t>(prng.below(40));
    const bool right = test::disjoint(lifetimes, offsets, 0);
    refused += right ? 0 : 1;
    CHECK(find_violation(named(lifetimes), offsets, 1000).has_value() == !right);
  }
  CHECK(refused > 100);
}
