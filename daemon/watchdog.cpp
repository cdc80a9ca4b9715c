#include "daemon/watchdog.hpp"

#include <systemd/sd-daemon.h>

#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <system_error>

#include "common/base/log.hpp"

namespace ho::daemon {

namespace {

/// Signs of life in the time that systemd allows: one that is late must not end the daemon.
constexpr std::int64_t kSignsPerTime = 3;

}  // namespace

struct Watchdog::Timer {
  explicit Timer(asio::io_context& io) : timer(io) {}
  asio::steady_timer timer;
  std::chrono::microseconds period{0};
};

Watchdog::Watchdog(asio::io_context& io, DataLoop& data)
    : io_(io), data_(data), timer_(std::make_unique<Timer>(io)) {}

Watchdog::~Watchdog() = default;

void Watchdog::start() {
  std::uint64_t allowed_us = 0;
  if (::sd_watchdog_enabled(0, &allowed_us) <= 0) return;
  timer_->period = std::chrono::microseconds(static_cast<std::int64_t>(allowed_us) / kSignsPerTime);
  ask();
}

void Watchdog::await_next() {
  timer_->timer.expires_after(timer_->period);
  timer_->timer.async_wait([this](std::error_code error) {
    if (!error) ask();
  });
}

void Watchdog::ask() {
  await_next();
  if (asked_) {
    log(LogLevel::kWarning, "the data thread does not answer; systemd will end this process");
    return;
  }
  asked_ = true;
  data_.ping([this] {
    asio::post(io_, [this] {
      asked_ = false;
      static_cast<void>(::sd_notify(0, "WATCHDOG=1"));
    });
  });
}

}  // namespace ho::daemon
