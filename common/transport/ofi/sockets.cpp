#include "common/transport/ofi/sockets.hpp"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <rdma/fabric.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "common/base/unique_fd.hpp"
#include "common/transport/ofi/provider_names.hpp"

namespace ho::transport {
namespace {

Error unreachable(int error) {
  // Refused, no route, reset: for the caller nobody is there, whatever the reason.
  return Error(Errc::kUnavailable, errno_error(error, "the target's address").context());
}

/// One address that is knocked at.
struct Door {
  UniqueFd fd;  ///< not valid: answered, or will not be asked
  Result<void> outcome = Error(Errc::kDeadline, "no answer from the target's address");
};

Door knock_at(const OfiAddress& address) {
  Door door;
  const auto where = socket_address(address);
  // Behind an IP address there may be an RDMA device, which no socket listens for.
  if (!where || !runs_over_tcp(address.provider)) {
    door.outcome = Result<void>();
    return door;
  }
  door.fd = UniqueFd(::socket(where->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!door.fd.valid()) {
    door.outcome = errno_error(errno, "socket");
    return door;
  }
  if (::connect(door.fd.get(), reinterpret_cast<const sockaddr*>(&*where),
                static_cast<socklen_t>(address.name.size())) == 0) {
    door.outcome = Result<void>();
    door.fd.reset();
  } else if (errno != EINPROGRESS) {
    door.outcome = unreachable(errno);
    door.fd.reset();
  }
  return door;
}

/// Takes the answer of a door whose descriptor is ready.
void open_door(Door& door) {
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(door.fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  door.outcome = error == 0 ? Result<void>() : unreachable(error);
  door.fd.reset();
}

using Folder = std::unique_ptr<DIR, int (*)(DIR*)>;

/// The descriptor that an entry of /proc/self/fd stands for; -1: none.
int number_of(const dirent& entry) {
  char* end = nullptr;
  const long number = std::strtol(entry.d_name, &end, 10);
  return end == entry.d_name || *end != '\0' ? -1 : static_cast<int>(number);
}

/// Whether `name` (getpeername or getsockname) of a socket is `where`.
template <typename Name>
bool is_at(int socket, Name name, const sockaddr_storage& where) {
  sockaddr_storage found{};
  socklen_t length = sizeof found;
  return name(socket, reinterpret_cast<sockaddr*>(&found), &length) == 0 &&
         same_place(found, where);
}

/// The descriptors of this process. All of them are read before any is made: the kernel gives them
/// out in parts, and would give out those made meanwhile too. Nothing where it cannot be told.
std::optional<std::vector<int>> descriptors() {
  const Folder folder(::opendir("/proc/self/fd"), ::closedir);
  if (!folder) return std::nullopt;
  std::vector<int> numbers;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nobody else reads by this handle
  while (const dirent* const entry = ::readdir(folder.get())) {
    const int fd = number_of(*entry);
    if (fd >= 0) numbers.push_back(fd);
  }
  return numbers;
}

bool same_file(int left, int right) {
  struct stat one {};
  struct stat other {};
  return ::fstat(left, &one) == 0 && ::fstat(right, &other) == 0 && one.st_dev == other.st_dev &&
         one.st_ino == other.st_ino;
}

/// Those of the descriptors that are sockets whose name is the address, by descriptors of our own,
/// each socket once. @return nothing where not all of them could be looked at.
template <typename Name>
std::optional<std::vector<UniqueFd>> sockets_among(std::span<const int> numbers,
                                                   const OfiAddress& address, Name name) {
  std::vector<UniqueFd> found;
  const auto where = socket_address(address);
  if (!where) return found;
  for (const int fd : numbers) {
    if (!is_at(fd, name, *where)) continue;
    // Another thread may close the descriptor and get its number for something else: what is looked
    // at and what is set must be one socket, so both go by a descriptor of our own.
    UniqueFd held(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!held.valid() && errno != EBADF) return std::nullopt;
    if (!held.valid() || !is_at(held.get(), name, *where)) continue;
    const auto known = [&](const UniqueFd& other) { return same_file(other.get(), held.get()); };
    if (std::none_of(found.begin(), found.end(), known)) found.push_back(std::move(held));
  }
  return found;
}

}  // namespace

std::optional<sockaddr_storage> socket_address(const OfiAddress& address) {
  sockaddr_storage where{};
  const bool socket_name = address.format == FI_SOCKADDR || address.format == FI_SOCKADDR_IN ||
                           address.format == FI_SOCKADDR_IN6;
  if (!socket_name || address.name.size() > sizeof where) return std::nullopt;
  std::memcpy(&where, address.name.data(), address.name.size());
  const bool v4 = where.ss_family == AF_INET && address.name.size() >= sizeof(sockaddr_in);
  const bool v6 = where.ss_family == AF_INET6 && address.name.size() >= sizeof(sockaddr_in6);
  if (!v4 && !v6) return std::nullopt;
  return where;
}

bool same_place(const sockaddr_storage& left, const sockaddr_storage& right) {
  if (left.ss_family != right.ss_family) return false;
  if (left.ss_family == AF_INET) {
    const auto& a = reinterpret_cast<const sockaddr_in&>(left);
    const auto& b = reinterpret_cast<const sockaddr_in&>(right);
    return a.sin_port == b.sin_port && a.sin_addr.s_addr == b.sin_addr.s_addr;
  }
  const auto& a = reinterpret_cast<const sockaddr_in6&>(left);
  const auto& b = reinterpret_cast<const sockaddr_in6&>(right);
  return a.sin6_port == b.sin6_port &&
         std::memcmp(&a.sin6_addr, &b.sin6_addr, sizeof a.sin6_addr) == 0;
}

std::vector<Result<void>> knock(std::span<const OfiAddress> addresses, const Clock& clock,
                                TimePoint deadline) {
  std::vector<Door> doors;
  doors.reserve(addresses.size());
  for (const OfiAddress& address : addresses) doors.push_back(knock_at(address));
  TimePoint end = deadline;
  while (true) {
    std::vector<pollfd> entries;
    entries.reserve(doors.size());
    for (const Door& door : doors) entries.push_back({door.fd.get(), POLLOUT, 0});
    const auto asked = [](const Door& door) { return door.fd.valid(); };
    const auto answered = [](const Door& door) { return door.outcome.ok(); };
    if (std::none_of(doors.begin(), doors.end(), asked)) break;
    if (std::any_of(doors.begin(), doors.end(), answered)) {
      end = std::min(end, clock.now() + kOtherRailsTime);
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - clock.now()).count();
    const int ready = ::poll(entries.data(), entries.size(),
                             static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) break;
    for (std::size_t i = 0; i < doors.size(); ++i) {
      if (entries[i].revents != 0) open_door(doors[i]);
    }
  }
  std::vector<Result<void>> outcomes;
  outcomes.reserve(doors.size());
  for (Door& door : doors) outcomes.push_back(std::move(door.outcome));
  return outcomes;
}

std::string describe(const OfiAddress& address) {
  const auto where = socket_address(address);
  if (!where) return address.provider + " address of format " + std::to_string(address.format);
  char text[INET6_ADDRSTRLEN] = {};
  if (where->ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(*where);
    ::inet_ntop(AF_INET, &v4.sin_addr, text, sizeof text);
    return std::string(text) + ":" + std::to_string(ntohs(v4.sin_port));
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(*where);
  ::inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof text);
  return "[" + std::string(text) + "]:" + std::to_string(ntohs(v6.sin6_port));
}

std::unique_lock<std::mutex> Leavings::alone() {
  static std::mutex one_at_a_time;
  return std::unique_lock(one_at_a_time);
}

void Leavings::hold(const OfiAddress& address) {
  const auto numbers = descriptors();
  auto found = numbers ? sockets_among(*numbers, address, ::getpeername) : std::nullopt;
  if (!found) {
    blind_ = true;
    return;
  }
  for (UniqueFd& socket : *found) sockets_.push_back(std::move(socket));
}

void Leavings::cut() {
  const auto numbers = descriptors();
  if (!numbers) {
    blind_ = true;
    return;
  }
  std::erase_if(sockets_, [&](const UniqueFd& socket) {
    return std::any_of(numbers->begin(), numbers->end(),
                       [&](int fd) { return fd != socket.get() && same_file(fd, socket.get()); });
  });
  for (const UniqueFd& socket : sockets_) {
    // Linux: sends a reset and drops what is queued; the socket stays, to be asked what is left.
    sockaddr none{};
    none.sa_family = AF_UNSPEC;
    (void)::connect(socket.get(), &none, sizeof none);
  }
}

bool Leavings::gone() {
  std::erase_if(sockets_, [](const UniqueFd& socket) {
    std::array<std::uint32_t, SK_MEMINFO_VARS> memory{};
    socklen_t length = sizeof memory;
    // An old kernel does not tell; then there is nothing to wait for.
    return ::getsockopt(socket.get(), SOL_SOCKET, SO_MEMINFO, memory.data(), &length) != 0 ||
           memory[SK_MEMINFO_WMEM_ALLOC] == 0;
  });
  return sockets_.empty() && !blind_;
}

int next_descriptor() { return UniqueFd(::eventfd(0, EFD_CLOEXEC)).get(); }

void end_lost_connections(const OfiAddress& listening, int opened_from) {
  std::vector<int> numbers;
  const int end = next_descriptor();
  for (int fd = std::max(opened_from, 0); fd < end; ++fd) numbers.push_back(fd);
  auto found = sockets_among(numbers, listening, ::getsockname);
  if (!found || found->empty()) {
    const auto all = descriptors();
    found = all ? sockets_among(*all, listening, ::getsockname) : std::nullopt;
  }
  if (!found) return;
  constexpr int kOn = 1;
  constexpr int kIdleSeconds = 15;
  constexpr int kBetweenSeconds = 3;
  constexpr int kTries = 3;
  for (const UniqueFd& held : *found) {
    const int socket = held.get();
    ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &kIdleSeconds, sizeof kIdleSeconds);
    ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &kBetweenSeconds, sizeof kBetweenSeconds);
    ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &kTries, sizeof kTries);
    ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &kOn, sizeof kOn);
  }
}

}  // namespace ho::transport
