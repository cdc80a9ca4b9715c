#include "common/system/memory_guard.hpp"

#include <setjmp.h>
#include <signal.h>
#include <ucontext.h>

#include <atomic>
#include <cerrno>
#include <mutex>

#include "common/base/check.hpp"

namespace ho {
namespace {

/// The guarded range, and the place to continue after a fault inside it.
struct Guard {
  sigjmp_buf back;
  const std::byte* begin;
  const std::byte* end;
};

// A signal handler belongs to the process and cannot take an argument. This pointer and the
// previous handler are all the state it can reach. initial-exec: a lazily created thread_local
// would allocate at its first use, inside the handler.
__attribute__((tls_model("initial-exec"))) thread_local Guard* volatile active_guard = nullptr;
struct sigaction previous_action;

/// True if an access by this thread raised the signal; only then does the instruction run again
/// when the handler returns. Other signals come from kill(), or report broken memory that no thread
/// touched.
bool from_an_access(const siginfo_t& info) {
  return info.si_code > 0 && info.si_code != BUS_MCEERR_AO;
}

void pass_on(int number, siginfo_t* info, void* context) {
  if ((previous_action.sa_flags & SA_SIGINFO) != 0) {
    previous_action.sa_sigaction(number, info, context);
    return;
  }
  if (previous_action.sa_handler == SIG_IGN && !from_an_access(*info)) return;
  if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN) {
    previous_action.sa_handler(number);
    return;
  }
  // Nothing else handles it: end the process with the default action. Either the instruction runs
  // again and faults, or raise() sends the signal again.
  struct sigaction usual {};
  usual.sa_handler = SIG_DFL;
  ::sigaction(number, &usual, nullptr);
  if (!from_an_access(*info)) ::raise(number);
}

void on_bus_error(int number, siginfo_t* info, void* context) {
  Guard* const guard = active_guard;
  const auto* const address = static_cast<const std::byte*>(info->si_addr);
  if (guard == nullptr || !from_an_access(*info) || address < guard->begin ||
      address >= guard->end) {
    pass_on(number, info, context);
    return;
  }
  // siglongjmp() does not restore the signal mask: run_guarded() saves none, to avoid a system
  // call. Restore the mask from before the fault.
  ::pthread_sigmask(SIG_SETMASK, &static_cast<const ucontext_t*>(context)->uc_sigmask, nullptr);
  siglongjmp(guard->back, 1);
}

Result<void> install_handler() {
  // Needed at start-up only, when two threads may both be the first.
  static std::mutex mutex;
  static bool installed = false;
  const std::lock_guard<std::mutex> lock(mutex);
  if (installed) return {};
  if (::sigaction(SIGBUS, nullptr, &previous_action) != 0) return errno_error(errno, "sigaction");
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  // On the stack that the thread has for signals: languages with small stacks require it.
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  ::sigemptyset(&action.sa_mask);
  if (::sigaction(SIGBUS, &action, nullptr) != 0) return errno_error(errno, "sigaction");
  installed = true;
  return {};
}

}  // namespace

Result<void> install_memory_guard() {
  if (auto installed = install_handler(); !installed) return installed;
  sigset_t bus_error;
  ::sigemptyset(&bus_error);
  ::sigaddset(&bus_error, SIGBUS);
  if (const int result = ::pthread_sigmask(SIG_UNBLOCK, &bus_error, nullptr); result != 0) {
    return errno_error(result, "pthread_sigmask");
  }
  return {};
}

bool run_guarded(std::span<const std::byte> memory, void (*work)(void*), void* argument) {
  HO_CHECK(active_guard == nullptr);
  Guard guard;
  guard.begin = memory.data();
  guard.end = memory.data() + memory.size();
  if (sigsetjmp(guard.back, 0) != 0) {
    active_guard = nullptr;
    return false;
  }
  active_guard = &guard;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  work(argument);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  active_guard = nullptr;
  return true;
}

}  // namespace ho
