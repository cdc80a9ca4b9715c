#include "tools/bench/leftover.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>

#include "common/base/check.hpp"

namespace ho::bench {
namespace {

// A signal handler gets no argument of ours: the paths are the only state that it can reach.
constexpr std::size_t kPlaces = 16;
std::array<std::atomic<const char*>, kPlaces> paths;
std::atomic<pid_t> owner;

void remove_path(const char* path) {
  if (::unlink(path) != 0 && errno == EISDIR) ::rmdir(path);
}

void on_end(int number) {
  if (::getpid() == owner.load()) {
    std::for_each(paths.rbegin(), paths.rend(), [](const std::atomic<const char*>& path) {
      if (path.load() != nullptr) remove_path(path.load());
    });
  }
  // SA_RESETHAND: the second one ends the process, as soon as this handler returns.
  ::raise(number);
}

bool install() {
  owner = ::getpid();
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action {};
    if (::sigaction(number, nullptr, &action) != 0 || action.sa_handler == SIG_IGN) continue;
    action = {};
    action.sa_handler = on_end;
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    ::sigaction(number, &action, nullptr);
  }
  return true;
}

}  // namespace

Leftover::Leftover(const std::filesystem::path& path)
    : path_(std::filesystem::absolute(path).string()), place_(0) {
  static const bool installed = install();
  HO_CHECK(installed);
  for (; place_ < kPlaces; ++place_) {
    const char* empty = nullptr;
    if (paths[place_].compare_exchange_strong(empty, path_.c_str())) return;
  }
  HO_CHECK(place_ < kPlaces);
}

Leftover::~Leftover() {
  remove_path(path_.c_str());
  paths[place_] = nullptr;
}

}  // namespace ho::bench
