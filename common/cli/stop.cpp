#include "common/cli/stop.hpp"

#include <unistd.h>

#include <csignal>

#include "common/cli/exit.hpp"

namespace ho::cli {
namespace {

constexpr unsigned kGraceSeconds = 5;

// A signal handler takes no user argument and can only reach global state.
std::atomic<bool> stop{false};
static_assert(std::atomic<bool>::is_always_lock_free);

extern "C" void on_stop(int number) {
  if (number == SIGALRM || stop.exchange(true)) ::_exit(kExitInterrupted);
  ::alarm(kGraceSeconds);
}

}  // namespace

void catch_stop_signals() {
  for (const int number : {SIGINT, SIGTERM, SIGALRM}) std::signal(number, on_stop);
}

const std::atomic<bool>& stop_flag() { return stop; }

}  // namespace ho::cli
