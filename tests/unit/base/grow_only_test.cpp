#include "common/base/grow_only.hpp"

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdint>
#include <thread>
#include <utility>

namespace ho::test {
namespace {

TEST_CASE("grow only: who sees an element sees it whole, where it stays") {
  constexpr std::uint64_t kMany = 4000;
  GrowOnly<std::pair<std::uint64_t, std::uint64_t>> list(kMany);
  list.push_back({0, 0});
  const auto* const first = &list[0];
  std::atomic<bool> wrong{false};
  std::thread reader([&] {
    for (std::size_t seen = 0; seen < kMany;) {
      std::uint64_t at = 0;
      for (const auto& [number, twice] : list) {
        if (number != at || twice != 2 * at) wrong.store(true);
        at += 1;
      }
      if (at < seen) wrong.store(true);
      seen = at;
    }
  });
  for (std::uint64_t i = 1; i < kMany; ++i) list.push_back({i, 2 * i});
  reader.join();
  CHECK_FALSE(wrong.load());
  CHECK(list.size() == kMany);
  CHECK(&list[0] == first);
}

}  // namespace
}  // namespace ho::test
