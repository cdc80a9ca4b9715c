#pragma once

#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <queue>
#include <vector>

#include "common/base/clock.hpp"
#include "tests/support/sim_transport.hpp"

namespace ho::test {

/// Ends the body of a fiber whose process was killed. Nothing else catches it.
struct FiberEnded {};

/// Events on a simulated clock, and threads of simulated processes that wait for them: all in one
/// real thread, in an order that depends on nothing but the times. A fiber has a stack of its
/// own, so that code which waits reads as in production.
class Fibers {
 public:
  class Fiber;

  explicit Fibers(SimClock& clock);
  ~Fibers();
  Fibers(const Fibers&) = delete;
  Fibers& operator=(const Fibers&) = delete;

  /// Calls `act` at that time; events of one time run in the order in which they were made.
  void at(TimePoint time, std::function<void()> act);
  /// Begins a fiber with the next event.
  Fiber* spawn(std::function<void()> body);
  /// It does not run any more: its stack is unwound at once, or by its own next wait.
  void end(Fiber* fiber);
  [[nodiscard]] bool ended(const Fiber* fiber) const;
  /// Its process stands still: it does not run until go_on().
  void pause(Fiber* fiber);
  void go_on(Fiber* fiber);

  // Within a fiber. They throw FiberEnded once it was ended.
  void sleep_until(TimePoint time);
  void sleep(Duration duration) { sleep_until(clock_.now() + duration); }
  /// Waits until `done()`, looking whenever the fiber is woken.
  /// @return false: the deadline has passed.
  template <typename Done>
  bool wait_until(const Done& done, TimePoint deadline) {
    if (done()) return true;
    begin_wait(deadline);
    do {
      if (clock_.now() >= deadline) return false;
      park();
    } while (!done());
    return true;
  }
  /// Lets a fiber look again. Any place.
  void wake(Fiber* fiber);

  /// Runs the next event. @return false: there is none.
  bool step();
  /// Runs all events up to that time, and moves the clock there.
  void run_until(TimePoint time);
  [[nodiscard]] SimClock& clock() { return clock_; }
  [[nodiscard]] std::uint64_t events() const { return events_; }

 private:
  struct Event {
    TimePoint time;
    std::uint64_t order = 0;
    std::function<void()> act;
    bool operator<(const Event& other) const {
      return time != other.time ? time > other.time : order > other.order;
    }
  };
  void begin_wait(TimePoint deadline);
  void park();
  void enter_if(Fiber& fiber, std::uint64_t wait);
  void enter(Fiber& fiber);
  void leave(Fiber& fiber);
  static void main_of(unsigned high, unsigned low);

  SimClock& clock_;
  std::priority_queue<Event> queue_;
  std::uint64_t next_order_ = 0;
  std::uint64_t events_ = 0;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<std::unique_ptr<std::byte[]>> stacks_;  ///< free: their fibers have ended
  Fiber* running_ = nullptr;
};

}  // namespace ho::test
