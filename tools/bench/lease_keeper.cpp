#include "tools/bench/lease_keeper.hpp"

#include <algorithm>
#include <chrono>

namespace ho::bench {

LeaseKeeper::LeaseKeeper(ControlClient& control, const Session& session)
    : control_(control), session_(session), thread_([this] { run(); }) {}

LeaseKeeper::~LeaseKeeper() {
  stopping_.store(true);
  stop_bell_.ring();
  thread_.join();
}

void LeaseKeeper::run() {
  const Duration period = std::max<Duration>(session_.lease / 3, std::chrono::milliseconds(10));
  TimePoint next = clock_.now() + period;
  while (!stopping_.load()) {
    const std::uint32_t token = stop_bell_.token();
    if (stopping_.load()) return;
    const TimePoint now = clock_.now();
    if (now < next) {
      stop_bell_.wait(token, next - now);
      continue;
    }
    next = now + period;
    (void)control_.renew_lease(session_, now + period);
  }
}

}  // namespace ho::bench
