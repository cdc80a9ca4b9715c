#include "client/pool/resumer.hpp"

#include <pthread.h>

#include <utility>

#include "common/base/signals.hpp"

namespace ho::client {

Resumer::Resumer(std::shared_ptr<Bell> bell, std::function<Found()> look)
    : bell_(std::move(bell)), look_(std::move(look)) {
  const SignalsBlocked blocked;
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "ho-resume");
}

Resumer::~Resumer() {
  stopping_.store(true);
  bell_->ring();
  thread_.join();
}

void Resumer::run() {
  while (!stopping_.load()) {
    const std::uint32_t token = bell_->token();
    if (stopping_.load()) return;
    if (look_() == Found::kNothing) {
      bell_->wait(token, Duration(-1));
    } else {
      // Taken anew: what rang meanwhile is looked at anyway, after the pause.
      bell_->wait(bell_->token(), kPause);
    }
  }
}

}  // namespace ho::client
