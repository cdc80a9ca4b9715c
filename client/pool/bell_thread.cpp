#include "client/pool/bell_thread.hpp"

#include <pthread.h>

#include <cstdint>
#include <utility>

#include "common/system/signals.hpp"

namespace ho::client {

BellThread::BellThread(const char* name, std::shared_ptr<Bell> bell, std::function<Duration()> work)
    : bell_(std::move(bell)), work_(std::move(work)) {
  const SignalsBlocked blocked;
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), name);
}

BellThread::~BellThread() {
  stopping_.store(true);
  bell_->ring();
  thread_.join();
}

void BellThread::run() {
  std::uint32_t token = bell_->token();
  while (!stopping_.load()) {
    const Duration pause = work_();
    // Taken anew: what rang meanwhile is looked at anyway, after the pause.
    if (pause >= Duration::zero()) token = bell_->token();
    if (stopping_.load()) return;
    bell_->wait(token, pause);
    token = bell_->token();
  }
}

}  // namespace ho::client
