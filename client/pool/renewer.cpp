#include "client/pool/renewer.hpp"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/signals.hpp"

namespace ho::client {

Renewer::Renewer(Duration lease, std::function<void(TimePoint next)> renew)
    : period_(std::max<Duration>(lease / 3, std::chrono::milliseconds(10))),
      renew_(std::move(renew)) {
  const SignalsBlocked blocked;
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "ho-leases");
}

Renewer::~Renewer() {
  stopping_.store(true);
  stop_bell_.ring();
  thread_.join();
}

void Renewer::run() {
  TimePoint next = clock_.now() + period_;
  while (!stopping_.load()) {
    const std::uint32_t token = stop_bell_.token();
    if (stopping_.load()) return;
    const TimePoint now = clock_.now();
    if (now < next) {
      stop_bell_.wait(token, next - now);
      continue;
    }
    next = now + period_;
    renew_(next);
  }
}

}  // namespace ho::client
