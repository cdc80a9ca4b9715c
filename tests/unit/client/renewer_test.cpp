#include "client/pool/renewer.hpp"

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

namespace {

using namespace ho;
using namespace std::chrono_literals;
using client::Renewer;

}  // namespace

TEST_CASE("renewer: it is due a third of the lease later each time, and not after its end") {
  const SteadyClock clock;
  std::atomic<int> calls{0};
  std::atomic<bool> early{false};
  std::atomic<bool> late{false};
  const TimePoint start = clock.now();
  {
    const Renewer renewer(60ms, [&](TimePoint next) {
      const TimePoint now = clock.now();
      early = early || now < start + 20ms * (calls + 1);
      late = late || next > now + 20ms;
      calls += 1;
    });
    while (calls < 3 && clock.now() < start + 10s) std::this_thread::sleep_for(1ms);
  }
  const int at_end = calls;
  CHECK(at_end >= 3);
  CHECK_FALSE(early);
  CHECK_FALSE(late);
  std::this_thread::sleep_for(50ms);
  CHECK(calls == at_end);
}

TEST_CASE("renewer: its end does not wait for the next renewal") {
  const SteadyClock clock;
  const TimePoint start = clock.now();
  {
    const Renewer renewer(1h, [](TimePoint) {});
  }
  CHECK(clock.now() - start < 10s);
}
