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
#include "common/transport/ofi/answer_count.hpp"
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
  std::size_t connections_max;
  std::shared_ptr<Unanswered> unanswered;
  std::size_t connections = 0;  ///< that are accepted and neither cut nor closed
};
std::vector<Listening> addresses;  // under mutex; few, looked through when one is accepted

/// An accepted connection. Touched by the thread that drives libfabric only.
struct Guarded {
  explicit Guarded(const Listening& at)
      : accepted_at(at.whose), unanswered(at.unanswered), asks(*unanswered) {}
  const GuardedAddress* const accepted_at;
  const std::shared_ptr<Unanswered> unanswered;  ///< may be needed for longer than the address
  FrameGuard asks;
  AnswerCount answers;
};

/// The kernel's own usual limit for a process (fs.nr_open); a connection with a higher descriptor
/// is not accepted. Untouched, the table takes no memory.
constexpr std::size_t kDescriptorsMax = std::size_t{1} << 20U;
/// Looked up by all threads.
std::array<std::atomic<Guarded*>, kDescriptorsMax> guards{};

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

Guarded* guard_of(int fd) {
  const auto at = static_cast<std::size_t>(fd);
  return fd < 0 || at >= guards.size() ? nullptr : guards[at].load(std::memory_order_acquire);
}

auto of_descriptor(int fd) {
  return [fd](const Silent& one) { return one.fd == fd; };
}

/// Under mutex. @return nullptr: it listens no more.
Listening* listening(const GuardedAddress* whose) {
  const auto found = std::find_if(addresses.begin(), addresses.end(),
                                  [&](const Listening& one) { return one.whose == whose; });
  return found == addresses.end() ? nullptr : &*found;
}

/// Under mutex. Where a connection was accepted. @return nullptr: nowhere that is guarded.
Listening* accepting(int accepted) {
  if (addresses.empty()) return nullptr;
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  if (::getsockname(accepted, reinterpret_cast<sockaddr*>(&own), &length) != 0) return nullptr;
  // From the newest: where another thread has a port that was just given up, that one listens.
  const auto found = std::find_if(addresses.rbegin(), addresses.rend(),
                                  [&](const Listening& one) { return same_place(one.at, own); });
  return found == addresses.rend() ? nullptr : &*found;
}

void is_silent_no_more(int fd) {
  const std::lock_guard lock(mutex);
  std::erase_if(silent, of_descriptor(fd));
}

/// Under mutex. Shuts one that has asked for nothing: libfabric would wait for ever.
void cut_silent(std::vector<Silent>::iterator one) {
  ::shutdown(one->fd, SHUT_RDWR);  // still open: what closes is not silent any more
  if (Listening* const at = listening(one->accepted_at)) --at->connections;
  cut.push_back(*one);
  silent.erase(one);
}

/// Guards a connection that was just accepted where it is to be. Where there are too many the
/// oldest that has asked for nothing gives way. @return false: it must go itself.
bool take_in(int fd) {
  const char* refused = nullptr;
  bool stays = true;
  {
    const std::lock_guard lock(mutex);
    Listening* const at = accepting(fd);
    if (at == nullptr) return true;
    if (static_cast<std::size_t>(fd) >= guards.size()) {
      refused = "more connections than can be checked";
      stays = false;
    } else if (at->connections == at->connections_max) {
      refused = "ofi: more connections than one address takes";
      const auto here = [&](const Silent& one) { return one.accepted_at == at->whose; };
      const auto oldest = std::find_if(silent.begin(), silent.end(), here);
      stays = oldest != silent.end();
      if (stays) cut_silent(oldest);
    } else if (silent.size() == kSilentMax) {
      refused = "ofi: more connections that ask for nothing than may wait";
      cut_silent(silent.begin());
    }
    if (stays) {
      guards[static_cast<std::size_t>(fd)].store(new Guarded(*at), std::memory_order_release);
      silent.push_back({fd, at->whose});
      ++at->connections;
    }
  }
  if (refused != nullptr) note_refusal(refused, "a connection");
  return stays;
}

void forget(int fd) {
  Guarded* const guarded = guard_of(fd);
  if (guarded == nullptr) return;
  {
    const std::lock_guard lock(mutex);
    std::erase_if(silent, of_descriptor(fd));
    const bool was_cut = std::erase_if(cut, of_descriptor(fd)) > 0;
    Listening* const at = listening(guarded->accepted_at);
    if (!was_cut && at != nullptr) --at->connections;
  }
  guards[static_cast<std::size_t>(fd)].store(nullptr);
  delete guarded;
}

/// libc's, or what a sanitizer puts before it.
template <typename Function>
Function* next(const char* name) {
  void* const found = ::dlsym(RTLD_NEXT, name);
  HO_CHECK(found != nullptr);
  return reinterpret_cast<Function*>(found);
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

void went_out(Guarded& guarded, std::span<const std::byte> bytes) {
  guarded.asks.answered(guarded.answers.sent(bytes));
}

}  // namespace

Result<std::unique_ptr<GuardedAddress>> GuardedAddress::create(const OfiAddress& address,
                                                               std::size_t connections_max) {
  const auto at = socket_address(address);
  if (!at) return Error(Errc::kUnsupported, "not an address of TCP's");
  return std::make_unique<GuardedAddress>(*at, connections_max);
}

GuardedAddress::GuardedAddress(const sockaddr_storage& at, std::size_t connections_max) {
  HO_CHECK(connections_max > 0);
  const std::lock_guard lock(mutex);
  addresses.push_back({this, at, connections_max, std::make_shared<Unanswered>()});
}

GuardedAddress::~GuardedAddress() {
  std::vector<int> left;
  {
    const std::lock_guard lock(mutex);
    const auto of_this = [&](const Listening& one) { return one.whose == this; };
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
  if (accepted < 0) return accepted;
  forget(accepted);
  if (take_in(accepted)) return accepted;
  ::close(accepted);
  errno = ECONNABORTED;
  return -1;
}

HO_BEFORE_LIBC ssize_t recv(int fd, void* bytes, std::size_t length, int flags) {
  using namespace ho::transport;
  static auto* const real = next<ssize_t(int, void*, std::size_t, int)>("recv");
  Guarded* const guarded = guard_of(fd);
  if (guarded == nullptr) return real(fd, bytes, length, flags);
  if ((flags & MSG_PEEK) != 0) {  // libfabric does not; what is read twice would be counted twice
    errno = EOPNOTSUPP;
    return -1;
  }
  FrameGuard& guard = guarded->asks;
  const bool greeted = guard.greeted();
  // libfabric lets a socket block until its hello is there: a part of one would hold the thread.
  ssize_t got = real(fd, bytes, length, flags | MSG_DONTWAIT);
  if (got > 0) {
    got = pass(fd, guard, {static_cast<const std::byte*>(bytes), static_cast<std::size_t>(got)});
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

HO_BEFORE_LIBC ssize_t send(int fd, const void* bytes, std::size_t length, int flags) {
  using namespace ho::transport;
  static auto* const real = next<ssize_t(int, const void*, std::size_t, int)>("send");
  Guarded* const guarded = guard_of(fd);
  const ssize_t sent = real(fd, bytes, length, flags);
  if (guarded != nullptr && sent > 0) {
    went_out(*guarded, {static_cast<const std::byte*>(bytes), static_cast<std::size_t>(sent)});
  }
  return sent;
}

HO_BEFORE_LIBC ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  using namespace ho::transport;
  static auto* const real = next<ssize_t(int, const msghdr*, int)>("sendmsg");
  Guarded* const guarded = guard_of(fd);
  const ssize_t sent = real(fd, message, flags);
  if (guarded == nullptr || sent <= 0) return sent;
  auto left = static_cast<std::size_t>(sent);
  for (std::size_t i = 0; i < message->msg_iovlen && left > 0; ++i) {
    const iovec& range = message->msg_iov[i];
    const std::size_t some = std::min(left, range.iov_len);
    went_out(*guarded, {static_cast<const std::byte*>(range.iov_base), some});
    left -= some;
  }
  return sent;
}

HO_BEFORE_LIBC int close(int fd) {
  using namespace ho::transport;
  static auto* const real = next<int(int)>("close");
  forget(fd);  // first: afterwards the number may be somebody else's
  return real(fd);
}
