#include "common/transport/striping/rail_turn.hpp"

#include <catch2/catch.hpp>

namespace ho::transport {
namespace {

using namespace std::chrono_literals;

constexpr TimePoint kBegin{1h};

/// Since `from`; must have come exactly then.
bool comes_after(const RailTurn& turn, TimePoint from, Duration pause) {
  return !turn.has_come(from + pause - 1ns) && turn.has_come(from + pause);
}

TEST_CASE("rail turn: every try that fails doubles the pause, up to its bound") {
  RailTurn turn;
  TimePoint now = kBegin;
  turn.given_up(now);
  for (const Duration pause : {5s, 10s, 20s, 40s, 60s, 60s}) {
    CHECK(comes_after(turn, now, pause));
    now += pause;
    turn.try_failed(now);
  }
}

TEST_CASE("rail turn: one that is given up soon after it came back waits twice as long, not more") {
  RailTurn turn;
  TimePoint now = kBegin;
  for (const Duration pause : {5s, 10s, 20s, 40s, 60s, 60s}) {
    turn.given_up(now);
    CHECK(comes_after(turn, now, pause));
    now += pause;
    turn.taken_back(now);
    now += RailTurn::kPauseMax;
  }
  now += 1ns;
  turn.given_up(now);  // it had lasted
  CHECK(comes_after(turn, now, RailTurn::kPauseMin));
}

}  // namespace
}  // namespace ho::transport
