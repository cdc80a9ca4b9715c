#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <system_error>
#include <thread>
#include <vector>

#include "common/base/signals.hpp"

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

/// Calls work(0) to work(count - 1), up to `at_once` of them at a time. Else as on_threads().
inline void each_on_threads(std::size_t count, std::size_t at_once,
                            const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next{0};
  on_threads(std::min(count, at_once), [&] {
    for (std::size_t i = next++; i < count; i = next++) work(i);
  });
}

}  // namespace ho::client
