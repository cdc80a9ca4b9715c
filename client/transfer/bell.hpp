#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "common/base/clock.hpp"

namespace ho::client {

/// Lets one thread sleep until another has changed something.
///
///   sleeper: token = bell.token(); look at the shared state; nothing to do: bell.wait(token,
///   limit) others:  change the shared state; bell.ring()
///
/// A ring between token() and wait() makes wait() return at once, so no wake-up is lost. Any
/// thread. ring() costs one atomic addition while nobody sleeps. std::atomic::wait() has no time
/// limit, hence the futex.
class Bell {
 public:
  [[nodiscard]] std::uint32_t token() const { return word_.load(std::memory_order_seq_cst); }

  void ring() {
    word_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
    ::syscall(SYS_futex, &word_, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
  }

  /// Returns after a ring since token(), after `limit`, or for no reason. `limit` < 0: no limit.
  void wait(std::uint32_t token, Duration limit) {
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    if (limit < Duration::zero()) {
      ::syscall(SYS_futex, &word_, FUTEX_WAIT_PRIVATE, token, nullptr, nullptr, 0);
    } else {
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
      const timespec timeout{static_cast<time_t>(seconds.count()),
                             static_cast<long>((limit - seconds).count())};
      ::syscall(SYS_futex, &word_, FUTEX_WAIT_PRIVATE, token, &timeout, nullptr, 0);
    }
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }

 private:
  std::atomic<std::uint32_t> word_{0};
  std::atomic<std::uint32_t> sleepers_{0};
};

/// Tells the processor that this is a spin loop.
inline void spin_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace ho::client
