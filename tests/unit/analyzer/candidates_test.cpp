#include "tools/analyzer/sweep/candidates.hpp"
#include "common/model/links.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <random>
#include <set>

#include "tools/analyzer/problem/channels.hpp"

using namespace ho;
using analyzer::Candidate;
using analyzer::Candidates;

TEST_CASE("candidates: they stay sorted, the furthest first, whatever is added, moved or removed") {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    Candidates candidates;
    std::set<Candidate> model;  // what has been added, ascending
    std::set<std::uint32_t> moved;
    std::uint32_t next = 0;
    for (std::int64_t p = 0; p < 300; ++p) {
      for (auto i = random() % 60; i > 0; --i) {
        const Candidate added{p + 1 + static_cast<std::int64_t>(random() % 400), next++};
        candidates.add(added);
        model.insert(added);
      }
      const std::size_t most = 1 + random() % 200;
      const std::size_t stop = random() % 250;
      std::vector<Candidate> expected;
      for (auto it = model.rbegin(); it != model.rend() && it->first > p; ++it) {
        if (expected.size() == most || expected.size() == stop + 1) break;
        if (!moved.contains(it->second)) expected.push_back(*it);
      }
      std::vector<Candidate> seen;
      candidates.scan(
          p, most, [&](std::uint32_t gap) { return moved.contains(gap); },
          [&](const Candidate& candidate) {
            seen.push_back(candidate);
            return seen.size() <= stop;
          });
      REQUIRE(seen == expected);
      if (!seen.empty()) moved.insert(seen[random() % seen.size()].second);
    }
  }
}

TEST_CASE("transfer time: it is exact in the narrow and in the wide computation") {
  __extension__ using Wide = unsigned __int128;
  std::mt19937_64 random(7);
  constexpr auto kLongest = static_cast<Wide>(std::numeric_limits<std::int64_t>::max() / 1024);
  for (int i = 0; i < 20'000; ++i) {
    const auto any = [&] { return random() >> (random() % 64); };
    const Link link{std::max<std::uint64_t>(1, any()), any()};
    const std::uint64_t bytes = any();
    const Wide exact =
        (static_cast<Wide>(bytes) * 1'000'000'000 + link.bytes_per_s - 1) / link.bytes_per_s +
        link.latency_ns;
    CAPTURE(bytes, link.bytes_per_s, link.latency_ns);
    REQUIRE(ho::transfer_ns(link, bytes) == static_cast<std::int64_t>(std::min(exact, kLongest)));
  }
}
