#pragma once

#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "client/include/hyperoffload/hyperoffload.h"
#include "client/pool/pool.hpp"
#include "client/replay/runtime.hpp"
#include "common/base/log.hpp"

// What stands behind the C ABI's handles, and how its functions fail. For c_api*.cpp only.

struct ho_pool {
  std::unique_ptr<ho::client::Pool> pool;
  /// What must have ended before the pool does. A mutex: runtimes and allocations come and go on
  /// any thread, and seldom.
  std::mutex mutex;
  std::map<std::uintptr_t, std::uintptr_t> arenas;  ///< of open runtimes: end by begin
  std::size_t runtimes = 0;
  std::size_t allocations = 0;
  /// Registered memory by first address. Used by the one thread that calls get and put.
  struct Registered {
    std::size_t bytes = 0;
    ho::client::LocalHandles handles;
  };
  std::map<std::uintptr_t, Registered> registered;
};
struct ho_allocation {
  std::unique_ptr<ho::client::Arena> arena;
};
struct ho_flash {
  ho::client::FlashArena flash;
};
struct ho_plan {
  ho::client::Plan* plan = nullptr;  ///< the runtime's
  ho_runtime* runtime = nullptr;
};
struct ho_runtime {
  std::unique_ptr<ho::client::Runtime> runtime;
  ho_pool* pool = nullptr;
  std::uintptr_t arena = 0;  ///< its begin; 0: none
  std::vector<std::unique_ptr<ho_plan>> plans;
};

namespace ho::client::c_api {

inline std::string& last_error() {
  thread_local std::string text;
  return text;
}

inline ho_status fail(const Error& error) {
  last_error() = error.context();
  return static_cast<ho_status>(error.code());
}

inline ho_status fail(ho_status status, const char* what) {
  last_error() = what;
  return status;
}

/// Runs one call's work and turns its outcome, or an exception of the standard library, into a
/// status.
template <typename Work>
ho_status guarded(Work&& work) noexcept {
  try {
    const Result<void> outcome = work();
    return outcome ? HO_OK : fail(outcome.error());
  } catch (const std::bad_alloc&) {
    return fail(HO_EXHAUSTED, "out of memory");
  } catch (const std::exception& caught) {
    return fail(HO_IO, caught.what());
  }
}

/// The same for a call that has no status: what fails in it is logged, nothing else can be done.
template <typename Work>
void guarded_end(const char* call, Work&& work) noexcept {
  try {
    work();
  } catch (const std::exception& caught) {
    ho::log(ho::LogLevel::kError, "a call ended early",
            {{"call", call}, {"reason", caught.what()}});
  }
}

inline Error null_argument() { return Error(Errc::kInvalidArgument, "a null argument"); }

}  // namespace ho::client::c_api
