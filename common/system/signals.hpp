#pragma once

#include <pthread.h>
#include <signal.h>

#include <initializer_list>

namespace ho {

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
