#pragma once

#include <pthread.h>
#include <signal.h>

#include <csignal>
#include <initializer_list>

namespace ho {

/// Takes back the signal handlers that libraries put in place when the program is loaded. Call it
/// first in main(), before there are threads.
///
/// Why: libfabric loads libinfinipath, whose constructor catches SEGV, BUS, ILL, ABRT, INT and TERM
/// with a handler that prints a backtrace and calls exit(1). That is not safe in a handler (it can
/// wait for ever for a lock its own thread holds), turns an abort into an exit, and ends a daemon
/// that is being started with status 1. It can be turned off by an environment variable only.
/// A signal that the parent had ignored stays ignored only if no library caught it.
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

/// While it lives, its thread lets no signal in but `except`; so do, for their lives, threads that
/// it makes meanwhile: the program's own threads take the program's signals.
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
