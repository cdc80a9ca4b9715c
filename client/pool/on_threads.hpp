#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "common/system/signals.hpp"

namespace ho::client {

/// Calls `work` on this thread and `count` - 1 others at a time, or on as many as the system gives.
/// Returns when all have ended. Signals of the host program do not run on the others. `work` shares
/// out what there is to do, so that fewer threads do all of it; it does not throw.
inline void on_threads(std::size_t count, const std::function<void()>& work) {
  std::vector<std::thread> others;
  {
    const SignalsBlocked blocked;
    try {
      while (others.size() + 1 < count) others.emplace_back(work);
    } catch (const std::system_error&) {
      // No more threads: those that there are do it.
    }
  }
  work();
  for (std::thread& one : others) one.join();
}

/// More at a time would cost more than they save: all wait for answers of other machines.
inline constexpr std::size_t kThreadsAtOnce = 64;

/// Calls work(0) to work(count - 1), each once, many at a time. Rethrows what one of them threw.
inline void each_on_threads(std::size_t count, const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr thrown;
  on_threads(std::min(count, kThreadsAtOnce), [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        thrown = std::current_exception();
      }
    }
  });
  if (thrown) std::rethrow_exception(thrown);
}

}  // namespace ho::client
