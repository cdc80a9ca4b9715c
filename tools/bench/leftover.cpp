#include "tools/bench/leftover.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <mutex>
#include <string>

#include "common/base/check.hpp"
#include "common/cli/exit.hpp"

namespace ho::bench {
namespace {

/// One path, in memory that a signal handler may read at any time.
struct Place {
  std::atomic<bool> used;
  char path[PATH_MAX];
};

// A signal handler takes no user argument and can only reach global state.
std::array<Place, 16> places;
std::atomic<pid_t> owner;

void remove_path(const char* path) {
  if (::unlink(path) != 0 && errno == EISDIR) ::rmdir(path);
}

void on_end(int number) {
  if (::getpid() == owner.load()) {
    std::for_each(places.rbegin(), places.rend(), [](const Place& place) {
      if (place.used.load()) remove_path(place.path);
    });
  }
  if (number == SIGINT) ::_exit(cli::kExitInterrupted);
  // SA_RESETHAND: the second signal ends the process when this handler returns.
  ::raise(number);
}

void install() {
  owner = ::getpid();
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action {};
    if (::sigaction(number, nullptr, &action) != 0 || action.sa_handler == SIG_IGN) continue;
    action = {};
    action.sa_handler = on_end;
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    ::sigaction(number, &action, nullptr);
  }
}

}  // namespace

Leftover::Leftover(const std::filesystem::path& path) {
  static std::once_flag once;
  std::call_once(once, install);
  // Takes the place behind all used ones, because the content of a folder is removed before the
  // folder.
  const auto last = std::find_if(places.rbegin(), places.rend(),
                                 [](const Place& place) { return place.used.load(); });
  place_ = static_cast<std::size_t>(places.rend() - last);
  HO_CHECK(place_ < places.size());
  const std::string text = std::filesystem::absolute(path).string();
  HO_CHECK(text.size() < sizeof places[place_].path);
  std::memcpy(places[place_].path, text.c_str(), text.size() + 1);
  places[place_].used = true;
}

Leftover::~Leftover() {
  remove_path(places[place_].path);
  places[place_].used = false;
}

}  // namespace ho::bench
