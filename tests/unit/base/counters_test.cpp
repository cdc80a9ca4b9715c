#include "common/base/counters.hpp"

#include <catch2/catch.hpp>
#include <chrono>

namespace ho {
namespace {

using std::chrono::microseconds;
using std::chrono::nanoseconds;

TEST_CASE("counters: a duration is in the first bucket whose end it does not exceed") {
  DurationHistogram all;
  all.note(nanoseconds(-5));  // a clock that others set back
  all.note(nanoseconds(0));
  all.note(microseconds(10));
  all.note(microseconds(10) + nanoseconds(1));
  all.note(microseconds(1'000'000));
  all.note(microseconds(1'000'001));
  CHECK(all.count(0) == 3);
  CHECK(all.count(1) == 1);
  CHECK(all.count(DurationHistogram::kBoundsUs.size() - 1) == 1);
  CHECK(all.count(DurationHistogram::kBoundsUs.size()) == 1);
  CHECK(all.sum_ns() == 10'000 + 10'001 + 1'000'000'000 + 1'000'001'000);
}

}  // namespace
}  // namespace ho
