#pragma once

#include <pthread.h>
#include <signal.h>

#include <csignal>
#include <initializer_list>

namespace ho {

/// Restores the default action of signals that libraries catch when the program is loaded. Call it
/// first in main(), before threads exist.
///
/// Why: libfabric loads libinfinipath. Its constructor catches SEGV, BUS, ILL, ABRT, INT and TERM
/// with a handler that prints a backtrace and calls exit(1). Such a handler can wait forever for a
/// lock that its own thread holds; it turns an abort into an exit, and ends a starting daemon with
/// status 1. Only an environment variable can turn it off. A signal that the parent process ignored
/// stays ignored, unless a library caught it.
/// Source: nm and strace of libinfinipath.so.4 of Debian 12, 2026.
inline void drop_library_signal_handlers() {
  for (const int number : {SIGSEGV, SIGBUS, SIGILL, SIGABRT, SIGINT, SIGTERM}) {
    struct sigaction now {};
    if (::sigaction(number, nullptr, &now) != 0) continue;
    const bool caught = (now.sa_flags & SA_SIGINFO) != 0 ||
                        (now.sa_handler != SIG_DFL && now.sa_handler != SIG_IGN);
    if (caught) std::signal(number, SIG_DFL);
  }
}

/// Blocks all signals except `except` on the current thread during its lifetime. Threads created
/// meanwhile inherit the mask and keep it. The program's own threads then receive its signals.
class SignalsBlocked {
 public:
  explicit SignalsBlocked(std::initializer_list<int> except = {}) {
    sigset_t most;
    ::sigfillset(&most);
    for (const int number : except) ::sigdelset(&most, number);
    ::pthread_sigmask(SIG_SETMASK, &most, &before_);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace ho
