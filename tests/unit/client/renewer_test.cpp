#include "client/pool/renewer.hpp"

#include <atomic>
#include <catch2/catch.hpp>
#include <memory>
#include <thread>

#include "client/pool/bell_thread.hpp"

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
    Renewer renewer(60ms, [&](TimePoint next) {
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
    Renewer renewer(1h, [](TimePoint) {});
  }
  CHECK(clock.now() - start < 10s);
}

TEST_CASE("bell thread: a ring during its work is not lost, and its end needs none") {
  const auto bell = std::make_shared<client::Bell>();
  std::atomic<int> calls{0};
  {
    const client::BellThread thread("test", bell, [&] {
      if (++calls == 1) bell->ring();
      return Duration(-1);
    });
    const SteadyClock clock;
    const TimePoint start = clock.now();
    while (calls < 2 && clock.now() < start + 10s) std::this_thread::sleep_for(1ms);
    CHECK(calls >= 2);
  }
  const int at_end = calls;
  bell->ring();
  CHECK(calls == at_end);
}
