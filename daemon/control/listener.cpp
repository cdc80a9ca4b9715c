#include "daemon/control/listener.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/log.hpp"
#include "proto/control/control_address.hpp"

namespace ho::daemon {

namespace {

constexpr int kBacklog = 256;
// Another daemon that starts holds the folder's lock for little more than a second.
constexpr auto kLockTimeMax = std::chrono::seconds(5);

/// Removes a socket file that nobody answers on. @return success where the path is free now.
Result<void> clear_stale(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return {};
    return errno_error(errno, path);
  }
  if (!S_ISSOCK(info.st_mode)) {
    return Error(Errc::kConflict, path + " exists and is not a socket");
  }
  ControlAddress address;
  address.path = path;
  const auto answer = dial(address, std::chrono::steady_clock::now() + std::chrono::seconds(1));
  // A daemon that is stopped or overloaded still owns its socket: only a refusal proves it dead.
  if (answer || answer.error().code() == Errc::kDeadline) {
    return Error(Errc::kAlreadyExists, "another daemon answers on " + path);
  }
  if (answer.error().code() != Errc::kUnavailable) return answer.error();
  log(LogLevel::kWarning, "replacing a stale socket", {{"path", path}});
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return errno_error(errno, path);
  return {};
}

Result<UniqueFd> bind_unix(const std::string& path) {
  sockaddr_un address{};
  HO_CHECK(path.size() < sizeof(address.sun_path));
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size());
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return errno_error(errno, "socket");
  // The file must never be there with wider rights, not even for a moment.
  const mode_t before = ::umask(0777 & ~0660);
  const int bound =
      ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ? 0
                                                                                          : errno;
  ::umask(before);
  if (bound != 0) return errno_error(bound, path);
  if (::listen(fd.get(), kBacklog) != 0) return errno_error(errno, "listen on " + path);
  return fd;
}

enum class Bind : std::uint8_t { kListen, kTry };

/// @return a listening socket (with kTry a bound one), or an invalid one with errno's value in
/// `error`.
UniqueFd bind_tcp(const addrinfo& address, Bind how, int& error) {
  UniqueFd fd(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  if (fd.valid()) ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (!fd.valid() || ::bind(fd.get(), address.ai_addr, address.ai_addrlen) != 0 ||
      (how == Bind::kListen && ::listen(fd.get(), kBacklog) != 0)) {
    error = errno;
    return {};
  }
  return fd;
}

Result<UniqueFd> open_tcp(const TcpListen& where, const std::string& field, Bind how) {
  const std::string name = field + " " + where.host + ":" + where.port;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int failure = ::getaddrinfo(where.host.c_str(), where.port.c_str(), &hints, &found);
  if (failure != 0) {
    return Error(Errc::kInvalidArgument, name + ": " + ::gai_strerror(failure));
  }
  // A name may have addresses that this machine lacks (localhost as ::1): the first that can be
  // had.
  UniqueFd fd;
  int error = 0;
  for (const addrinfo* entry = found; entry != nullptr && !fd.valid(); entry = entry->ai_next) {
    fd = bind_tcp(*entry, how, error);
  }
  ::freeaddrinfo(found);
  if (!fd.valid()) return errno_error(error, name);
  return fd;
}

}  // namespace

Result<UnixListener> UnixListener::create(const std::string& path) {
  // The folder is locked meanwhile: two daemons starting at once must not both find it stale.
  const std::size_t slash = path.rfind('/');
  HO_CHECK(slash != std::string::npos);
  const std::string folder = slash == 0 ? "/" : path.substr(0, slash);
  UniqueFd lock(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock.valid()) return errno_error(errno, "folder " + folder);
  const auto lock_end = std::chrono::steady_clock::now() + kLockTimeMax;
  while (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return errno_error(errno, "lock " + folder);
    if (std::chrono::steady_clock::now() >= lock_end) {
      return Error(Errc::kDeadline, "folder " + folder + " is locked by another process");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  if (auto clear = clear_stale(path); !clear) return clear.error();
  auto fd = bind_unix(path);
  if (!fd) return fd.error();
  return adopt(std::move(*fd), path);
}

Result<UnixListener> UnixListener::adopt(UniqueFd fd, const std::string& path) {
  UnixListener made(std::move(fd), path);
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return errno_error(errno, path);
  made.device_ = info.st_dev;
  made.inode_ = info.st_ino;
  return made;
}

UnixListener::UnixListener(UnixListener&& other) noexcept
    : fd_(std::move(other.fd_)),
      path_(std::exchange(other.path_, {})),
      device_(other.device_),
      inode_(other.inode_) {}

UnixListener::~UnixListener() {
  if (path_.empty()) return;
  struct stat info {};
  if (::stat(path_.c_str(), &info) != 0) return;
  if (info.st_dev == device_ && info.st_ino == inode_) ::unlink(path_.c_str());
}

Result<TcpListener> listen_tcp(const TcpListen& where, const std::string& field) {
  auto fd = open_tcp(where, field, Bind::kListen);
  if (!fd) return fd.error();
  sockaddr_storage bound{};
  socklen_t length = sizeof(bound);
  if (::getsockname(fd->get(), reinterpret_cast<sockaddr*>(&bound), &length) != 0) {
    return errno_error(errno, "getsockname");
  }
  const std::uint16_t port = bound.ss_family == AF_INET6
                                 ? ntohs(reinterpret_cast<const sockaddr_in6*>(&bound)->sin6_port)
                                 : ntohs(reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
  const bool bracket = where.host.find(':') != std::string::npos;
  TcpListener out;
  out.fd = std::move(*fd);
  out.address =
      "tcp:" + (bracket ? "[" + where.host + "]" : where.host) + ":" + std::to_string(port);
  return out;
}

Result<void> check_tcp(const TcpListen& where, const std::string& field) {
  const auto fd = open_tcp(where, field, Bind::kTry);
  if (!fd) return fd.error();
  return {};
}

}  // namespace ho::daemon
