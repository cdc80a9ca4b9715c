#include "common/transport/local/fault_guard.hpp"

#include <setjmp.h>
#include <signal.h>
#include <ucontext.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <mutex>

#include "common/transport/local/copy.hpp"

namespace ho::transport {
namespace {

/// Where a fault inside `segment` goes back to.
struct Guard {
  sigjmp_buf back;
  const std::byte* begin;
  const std::byte* end;
};

// A signal handler is process-wide and gets no argument of ours: this pointer and the previous
// handler are the only state it can reach. initial-exec, because the first use of a lazily made
// thread_local inside a handler would allocate.
__attribute__((tls_model("initial-exec"))) thread_local Guard* volatile active_guard = nullptr;
struct sigaction previous_action;

void pass_on(int number, siginfo_t* info, void* context) {
  if ((previous_action.sa_flags & SA_SIGINFO) != 0) {
    previous_action.sa_sigaction(number, info, context);
    return;
  }
  if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN) {
    previous_action.sa_handler(number);
    return;
  }
  // Not ours and nobody else's: the instruction runs again and ends the process in the usual way.
  struct sigaction usual {};
  usual.sa_handler = SIG_DFL;
  ::sigaction(SIGBUS, &usual, nullptr);
}

void on_bus_error(int number, siginfo_t* info, void* context) {
  Guard* guard = active_guard;
  const auto* address = static_cast<const std::byte*>(info->si_addr);
  if (guard != nullptr && address >= guard->begin && address < guard->end) {
    // The jump does not restore the signal mask (guarded_copy() saves none: it would cost a system
    // call per copy), so the mask from before the fault is put back here.
    ::pthread_sigmask(SIG_SETMASK, &static_cast<const ucontext_t*>(context)->uc_sigmask, nullptr);
    siglongjmp(guard->back, 1);
  }
  pass_on(number, info, context);
}

}  // namespace

Result<void> install_fault_guard() {
  // The lock is for start-up only: two first transports may be made on two threads.
  static std::mutex mutex;
  static bool installed = false;
  const std::lock_guard<std::mutex> lock(mutex);
  if (installed) return {};
  if (::sigaction(SIGBUS, nullptr, &previous_action) != 0) return errno_error(errno, "sigaction");
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  ::sigemptyset(&action.sa_mask);
  if (::sigaction(SIGBUS, &action, nullptr) != 0) return errno_error(errno, "sigaction");
  installed = true;
  return {};
}

CopyOutcome guarded_copy(const GuardedCopy& copy) {
  Guard guard;
  guard.begin = copy.segment.data();
  guard.end = copy.segment.data() + copy.segment.size();
  if (sigsetjmp(guard.back, 0) != 0) {
    active_guard = nullptr;
    return CopyOutcome::kSegmentGone;
  }
  active_guard = &guard;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  copy_piece(copy.to, copy.from, copy.length_bytes, copy.total_bytes);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  active_guard = nullptr;
  return CopyOutcome::kCopied;
}

}  // namespace ho::transport
