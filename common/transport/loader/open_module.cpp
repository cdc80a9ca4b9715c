#include "common/transport/loader/open_module.hpp"

#include <dlfcn.h>
#include <signal.h>

#include <array>
#include <mutex>

namespace ho::transport {
namespace {

constexpr int kSignals = 64;

/// Restores the handler of every signal. When libucs is loaded it catches SEGV, BUS, ILL, FPE and
/// HUP with handlers that print and end the process. libinfinipath, which libfabric loads, catches
/// SEGV, BUS, ILL, ABRT, INT and TERM: such a handler can wait forever for a lock that its own
/// thread holds.
/// Source: nm and strace of libinfinipath.so.4 of Debian 12, 2026.
class KeptSignals {
 public:
  KeptSignals() {
    for (int number = 1; number <= kSignals; ++number) {
      Kept& kept = kept_[static_cast<std::size_t>(number - 1)];
      kept.known = ::sigaction(number, nullptr, &kept.action) == 0;
    }
  }
  ~KeptSignals() {
    for (int number = 1; number <= kSignals; ++number) {
      const Kept& kept = kept_[static_cast<std::size_t>(number - 1)];
      struct sigaction now {};
      if (!kept.known || ::sigaction(number, nullptr, &now) != 0) continue;
      if (now.sa_handler != kept.action.sa_handler || now.sa_flags != kept.action.sa_flags) {
        ::sigaction(number, &kept.action, nullptr);
      }
    }
  }
  KeptSignals(const KeptSignals&) = delete;
  KeptSignals& operator=(const KeptSignals&) = delete;

 private:
  struct Kept {
    bool known = false;
    struct sigaction action {};
  };
  std::array<Kept, kSignals> kept_{};
};

}  // namespace

Error unusable_module(const std::string& file, const std::string& why) {
  return Error(Errc::kUnsupported, "the driver's module " + file + ": " + why);
}

Result<void*> open_module(const std::string& file) {
  // Two threads that opened one at once would each save the other's handlers and restore those.
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  const KeptSignals signals;
  void* const handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    const char* const why = ::dlerror();
    return unusable_module(file, why == nullptr ? "cannot be opened" : why);
  }
  return handle;
}

}  // namespace ho::transport
