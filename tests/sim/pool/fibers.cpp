#include "tests/sim/pool/fibers.hpp"

#include <algorithm>
#include <utility>

#include "common/base/check.hpp"
#include "tests/support/seeds.hpp"

#ifdef HO_TEST_SANITIZED
#include <sanitizer/common_interface_defs.h>
#endif

namespace ho::test {
namespace {

constexpr std::size_t kStackBytes = 256 * 1024;

}  // namespace

class Fibers::Fiber {
 public:
  Fibers* owner = nullptr;
  std::function<void()> body;
  std::unique_ptr<std::byte[]> stack;
  ucontext_t own{};
  ucontext_t outside{};
  std::uint64_t waits = 0;  ///< tells the wait of a wake-up from earlier ones
  bool parked = true;       ///< also before it begins
  bool deaf = false;        ///< only time wakes it
  bool woken = false;       ///< an event to look again is on its way
  bool paused = false;
  bool due = false;  ///< once it is not paused any more
  bool ending = false;
  bool over = false;
  // For the address sanitizer, which has to know of each change of stacks.
  void* fake_own = nullptr;
  void* fake_outside = nullptr;
  const void* outside_bottom = nullptr;
  std::size_t outside_bytes = 0;
};

Fibers::Fibers(SimClock& clock) : clock_(clock) {}

Fibers::~Fibers() {
  for (const auto& fiber : fibers_) end(fiber.get());
}

void Fibers::at(TimePoint time, std::function<void()> act) {
  queue_.push({std::max(time, clock_.now()), next_order_++, std::move(act)});
}

Fibers::Fiber* Fibers::spawn(std::function<void()> body) {
  fibers_.push_back(std::make_unique<Fiber>());
  Fiber* const fiber = fibers_.back().get();
  fiber->owner = this;
  fiber->body = std::move(body);
  at(clock_.now(), [this, fiber] { enter_if(*fiber, 0); });
  return fiber;
}

bool Fibers::ended(const Fiber* fiber) const { return fiber->over; }

void Fibers::end(Fiber* fiber) {
  if (fiber->over || fiber->ending) return;
  fiber->ending = true;
  if (fiber == running_) return;  // by its next wait
  if (fiber->stack == nullptr) {
    fiber->over = true;  // it never began
    return;
  }
  HO_CHECK(running_ == nullptr && fiber->parked);
  enter(*fiber);
  HO_CHECK(fiber->over);
}

void Fibers::sleep_until(TimePoint time) {
  if (time <= clock_.now()) return;
  Fiber& fiber = *running_;
  begin_wait(time);
  fiber.deaf = true;
  while (clock_.now() < time) park();
  fiber.deaf = false;
}

void Fibers::wake(Fiber* fiber) {
  if (!fiber->parked || fiber->deaf || fiber->woken) return;
  fiber->woken = true;
  at(clock_.now(), [this, fiber, wait = fiber->waits] { enter_if(*fiber, wait); });
}

/// Continues the fiber from that wait, unless it has left it.
void Fibers::enter_if(Fiber& fiber, std::uint64_t wait) {
  if (fiber.over || !fiber.parked || fiber.waits != wait) return;
  if (fiber.paused) {
    fiber.due = true;
  } else {
    enter(fiber);
  }
}

void Fibers::pause(Fiber* fiber) { fiber->paused = true; }

void Fibers::go_on(Fiber* fiber) {
  fiber->paused = false;
  if (!std::exchange(fiber->due, false)) return;
  at(clock_.now(), [this, fiber, wait = fiber->waits] { enter_if(*fiber, wait); });
}

/// Its end by the deadline is one event, however often the fiber looks meanwhile.
void Fibers::begin_wait(TimePoint deadline) {
  Fiber& fiber = *running_;
  fiber.waits += 1;
  if (deadline == TimePoint::max()) return;
  at(deadline, [this, one = &fiber, wait = fiber.waits] { enter_if(*one, wait); });
}

void Fibers::park() {
  Fiber& fiber = *running_;
  if (fiber.ending) throw FiberEnded();
  fiber.parked = true;
  leave(fiber);
  if (fiber.ending) throw FiberEnded();
}

void Fibers::main_of(unsigned high, unsigned low) {
  auto* const fiber = reinterpret_cast<Fiber*>(std::uintptr_t{high} << 32U | low);
#ifdef HO_TEST_SANITIZED
  __sanitizer_finish_switch_fiber(nullptr, &fiber->outside_bottom, &fiber->outside_bytes);
#endif
  try {
    if (!fiber->ending) fiber->body();
  } catch (const FiberEnded&) {
    // Its process was killed.
  }
  fiber->body = nullptr;
  fiber->over = true;
#ifdef HO_TEST_SANITIZED
  __sanitizer_start_switch_fiber(nullptr, fiber->outside_bottom, fiber->outside_bytes);
#endif
  swapcontext(&fiber->own, &fiber->outside);
}

void Fibers::enter(Fiber& fiber) {
  HO_CHECK(running_ == nullptr && !fiber.over);
  running_ = &fiber;
  fiber.parked = fiber.woken = false;
  if (fiber.stack == nullptr) {
    if (stacks_.empty()) stacks_.emplace_back(new std::byte[kStackBytes]);
    fiber.stack = std::move(stacks_.back());
    stacks_.pop_back();
    getcontext(&fiber.own);
    fiber.own.uc_stack.ss_sp = fiber.stack.get();
    fiber.own.uc_stack.ss_size = kStackBytes;
    fiber.own.uc_link = nullptr;
    const auto address = reinterpret_cast<std::uintptr_t>(&fiber);
    // makecontext() passes integers.
    makecontext(&fiber.own, reinterpret_cast<void (*)()>(&Fibers::main_of), 2,
                static_cast<unsigned>(address >> 32U), static_cast<unsigned>(address & UINT32_MAX));
  }
#ifdef HO_TEST_SANITIZED
  __sanitizer_start_switch_fiber(&fiber.fake_outside, fiber.stack.get(), kStackBytes);
#endif
  swapcontext(&fiber.outside, &fiber.own);
#ifdef HO_TEST_SANITIZED
  __sanitizer_finish_switch_fiber(fiber.fake_outside, nullptr, nullptr);
#endif
  running_ = nullptr;
  if (fiber.over) stacks_.push_back(std::move(fiber.stack));
}

void Fibers::leave(Fiber& fiber) {
#ifdef HO_TEST_SANITIZED
  __sanitizer_start_switch_fiber(&fiber.fake_own, fiber.outside_bottom, fiber.outside_bytes);
#endif
  swapcontext(&fiber.own, &fiber.outside);
#ifdef HO_TEST_SANITIZED
  __sanitizer_finish_switch_fiber(fiber.fake_own, &fiber.outside_bottom, &fiber.outside_bytes);
#endif
}

bool Fibers::step() {
  if (queue_.empty()) return false;
  // priority_queue gives const access only; the event leaves it at once.
  Event event = std::move(const_cast<Event&>(queue_.top()));
  queue_.pop();
  clock_.advance_to(event.time);
  events_ += 1;
  event.act();
  return true;
}

void Fibers::run_until(TimePoint time) {
  while (!queue_.empty() && queue_.top().time <= time) step();
  clock_.advance_to(time);
}

}  // namespace ho::test
