#include "common/transport/ofi/guarded_sockets.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <utility>
#include <vector>

#include "common/base/check.hpp"
#include "common/transport/ofi/fabric_log.hpp"
#include "common/transport/ofi/frame_guard.hpp"
#include "common/transport/ofi/sockets.hpp"

namespace ho::transport {
namespace {

// What libc's functions are asked with is a descriptor and nothing else, so what is known of a
// descriptor has to be found from everywhere.
std::mutex mutex;
struct Listening {
  const GuardedAddress* whose;
  sockaddr_storage at;
};
std::vector<Listening> addresses;  // under mutex; few, looked through when one is accepted

/// The kernel's own usual limit for a process (fs.nr_open); a connection with a higher descriptor
/// is not accepted. Untouched, the table takes no memory.
constexpr std::size_t kDescriptorsMax = std::size_t{1} << 20U;
/// Each touched by the thread that drives libfabric only, but looked up by all.
std::array<std::atomic<FrameGuard*>, kDescriptorsMax> guards{};

std::atomic<bool> any{false};

/// Connections, of all addresses together, that may have asked for nothing yet. An initiator of
/// ours asks with its first round trip; whoever has no key can do no more than wait here.
constexpr std::size_t kSilentMax = 256;
struct Silent {
  int fd;
  const GuardedAddress* accepted_at;
};
std::vector<Silent> silent;  // under mutex; the oldest first
std::vector<Silent> cut;     // under mutex; were silent, are shut, and libfabric has yet to notice

FrameGuard* guard_of(int fd) {
  const auto at = static_cast<std::size_t>(fd);
  return fd < 0 || at >= guards.size() ? nullptr : guards[at].load(std::memory_order_acquire);
}

void is_silent_no_more(int fd) {
  const std::lock_guard lock(mutex);
  const auto is_it = [fd](const Silent& one) { return one.fd == fd; };
  std::erase_if(silent, is_it);
  std::erase_if(cut, is_it);
}

/// One more. Where there are too many the oldest is shut: libfabric waits for ever.
void is_silent(int fd, const GuardedAddress* accepted_at) {
  bool full = false;
  {
    const std::lock_guard lock(mutex);
    full = silent.size() == kSilentMax;
    if (full) {
      ::shutdown(silent.front().fd, SHUT_RDWR);  // still open: what closes is not silent any more
      cut.push_back(silent.front());
      silent.erase(silent.begin());
    }
    silent.push_back({fd, accepted_at});
  }
  if (full) {
    note_refusal("ofi: more connections that ask for nothing than may wait", "a connection");
  }
}

void forget(int fd) {
  if (guard_of(fd) == nullptr) return;
  is_silent_no_more(fd);
  delete guards[static_cast<std::size_t>(fd)].exchange(nullptr);
}

/// libc's, or what a sanitizer puts before it.
template <typename Function>
Function* next(const char* name) {
  void* const found = ::dlsym(RTLD_NEXT, name);
  HO_CHECK(found != nullptr);
  return reinterpret_cast<Function*>(found);
}

/// Where a connection was accepted. @return nullptr: nowhere that is guarded.
const GuardedAddress* guarding(int accepted) {
  const std::lock_guard lock(mutex);
  if (addresses.empty()) return nullptr;
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  if (::getsockname(accepted, reinterpret_cast<sockaddr*>(&own), &length) != 0) return nullptr;
  // From the newest: where another thread has a port that was just given up, that one listens.
  const auto found =
      std::find_if(addresses.rbegin(), addresses.rend(),
                   [&](const Listening& listening) { return same_place(listening.at, own); });
  return found == addresses.rend() ? nullptr : found->whose;
}

/// What of `got` bytes libfabric may see. @return recv()'s.
ssize_t pass(int fd, FrameGuard& guard, std::span<const std::byte> got) {
  if (!any.load(std::memory_order_relaxed)) any.store(true, std::memory_order_relaxed);
  const bool known = guard.refusal() != nullptr;
  const bool asked = guard.asked();
  const std::size_t passed = guard.admit(got);
  if (!asked && guard.asked()) is_silent_no_more(fd);
  if (guard.refusal() == nullptr) return static_cast<ssize_t>(passed);
  if (!known) {
    note_refusal(guard.refusal(), "a connection");
    // Or nothing would tell libfabric to ask again and hear that it is over.
    ::shutdown(fd, SHUT_RDWR);
  }
  if (passed > 0) return static_cast<ssize_t>(passed);
  errno = ECONNRESET;
  return -1;
}

}  // namespace

Result<std::unique_ptr<GuardedAddress>> GuardedAddress::create(const OfiAddress& listening) {
  const auto at = socket_address(listening);
  if (!at) return Error(Errc::kUnsupported, "not an address of TCP's");
  return std::make_unique<GuardedAddress>(*at);
}

GuardedAddress::GuardedAddress(const sockaddr_storage& at) {
  const std::lock_guard lock(mutex);
  addresses.push_back({this, at});
}

GuardedAddress::~GuardedAddress() {
  std::vector<int> left;
  {
    const std::lock_guard lock(mutex);
    const auto of_this = [&](const Listening& listening) { return listening.whose == this; };
    HO_CHECK(std::erase_if(addresses, of_this) == 1);
    for (const auto* const some : {&silent, &cut}) {
      for (const Silent& one : *some) {
        if (one.accepted_at == this) left.push_back(one.fd);
      }
    }
  }
  // The endpoint has closed those that said hello. Of the others only the epoll descriptor knew
  // that libfabric waited on, and it closed that one only (xnet_pep_close(),
  // xnet_close_progress()).
  for (const int fd : left) ::close(fd);
}

bool anything_guarded() { return any.load(std::memory_order_relaxed); }

}  // namespace ho::transport

// libc's names, to be found by libfabric although all else of ours is hidden.
#define HO_BEFORE_LIBC extern "C" __attribute__((visibility("default")))

HO_BEFORE_LIBC int accept(int fd, sockaddr* peer, socklen_t* length) {
  using namespace ho::transport;
  static auto* const real = next<int(int, sockaddr*, socklen_t*)>("accept");
  const int accepted = real(fd, peer, length);
  const GuardedAddress* const at = accepted < 0 ? nullptr : guarding(accepted);
  if (at == nullptr) return accepted;
  if (static_cast<std::size_t>(accepted) >= guards.size()) {
    note_refusal("more connections than can be checked", "a connection");
    ::close(accepted);
    errno = ECONNABORTED;
    return -1;
  }
  forget(accepted);
  guards[static_cast<std::size_t>(accepted)].store(new FrameGuard, std::memory_order_release);
  is_silent(accepted, at);
  return accepted;
}

HO_BEFORE_LIBC ssize_t recv(int fd, void* bytes, std::size_t length, int flags) {
  using namespace ho::transport;
  static auto* const real = next<ssize_t(int, void*, std::size_t, int)>("recv");
  FrameGuard* const guard = guard_of(fd);
  if (guard == nullptr) return real(fd, bytes, length, flags);
  if ((flags & MSG_PEEK) != 0) {  // libfabric does not; what is read twice would be counted twice
    errno = EOPNOTSUPP;
    return -1;
  }
  const bool greeted = guard->greeted();
  // libfabric lets a socket block until its hello is there: a part of one would hold the thread.
  ssize_t got = real(fd, bytes, length, flags | MSG_DONTWAIT);
  if (got > 0) {
    got = pass(fd, *guard, {static_cast<const std::byte*>(bytes), static_cast<std::size_t>(got)});
  }
  // It reads a hello once. Of one that is short or not there it looks at errno, which an earlier
  // send may have left: EAGAIN, and it neither watches the connection nor closes it any more.
  if (!greeted && (got >= 0 || errno == EAGAIN)) errno = EIO;
  return got;
}

HO_BEFORE_LIBC ssize_t recvmsg(int fd, msghdr* message, int flags) {
  using namespace ho::transport;
  static auto* const real = next<ssize_t(int, msghdr*, int)>("recvmsg");
  // libfabric reads into several buffers at once for frames of several ranges, which do not pass.
  if (guard_of(fd) != nullptr && (flags & MSG_ERRQUEUE) == 0) {
    errno = EOPNOTSUPP;
    return -1;
  }
  return real(fd, message, flags);
}

HO_BEFORE_LIBC int close(int fd) {
  using namespace ho::transport;
  static auto* const real = next<int(int)>("close");
  forget(fd);  // first: afterwards the number may be somebody else's
  return real(fd);
}
