#include "proto/control/control_address.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <future>
#include <memory>
#include <thread>

#include "common/system/signals.hpp"

namespace ho {

namespace {

bool valid_port(const std::string& text) {
  unsigned value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size() && value <= 65535;
}

Result<ControlAddress> parse_tcp(const std::string& text, const std::string& rest) {
  const std::size_t colon = rest.rfind(':');
  if (colon == std::string::npos || colon == 0) {
    return Error(Errc::kInvalidArgument, "\"" + text + "\": expected tcp:HOST:PORT");
  }
  ControlAddress out;
  out.kind = ControlAddress::Kind::kTcp;
  out.host = rest.substr(0, colon);
  out.port = rest.substr(colon + 1);
  if (out.host.front() == '[' && out.host.back() == ']' && out.host.size() > 2) {
    out.host = out.host.substr(1, out.host.size() - 2);
  } else if (out.host.find_first_of(":[]") != std::string::npos) {
    return Error(Errc::kInvalidArgument, "\"" + text + "\": write IPv6 as tcp:[ADDRESS]:PORT");
  }
  if (!valid_port(out.port)) {
    return Error(Errc::kInvalidArgument, "\"" + text + "\": the port must be 0 .. 65535");
  }
  return out;
}

/// Waits for a connect() in progress. @return kDeadline, kUnavailable.
Result<void> finish_connect(int fd, std::chrono::steady_clock::time_point deadline) {
  while (true) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd entry{fd, POLLOUT, 0};
    const auto wait_ms = std::clamp<std::int64_t>(left.count(), 0, 1'000'000);
    const int ready = ::poll(&entry, 1, static_cast<int>(wait_ms));
    if (ready < 0 && errno == EINTR) continue;
    if (ready < 0) return errno_error(errno, "poll");
    if (ready == 0) return Error(Errc::kDeadline, "no connection before the deadline");
    int error = 0;
    socklen_t length = sizeof(error);
    ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return errno_error(error, "connect");
    return {};
  }
}

Result<UniqueFd> dial_one(const sockaddr* address, socklen_t length,
                          std::chrono::steady_clock::time_point deadline) {
  UniqueFd fd(::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return errno_error(errno, "socket");
  while (::connect(fd.get(), address, length) != 0) {
    if (errno == EINTR) continue;
    if (errno == EINPROGRESS) {
      if (auto done = finish_connect(fd.get(), deadline); !done) return done.error();
      break;
    }
    // A Unix listener with a full backlog answers EAGAIN, and poll() cannot wait for it.
    if (errno != EAGAIN) return errno_error(errno, "connect");
    if (std::chrono::steady_clock::now() >= deadline) {
      return Error(Errc::kDeadline, "no connection before the deadline: the listener is busy");
    }
    ::poll(nullptr, 0, 5);
  }
  if (address->sa_family != AF_UNIX) {
    const int on = 1;
    ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }
  return fd;
}

/// The result of a name look-up. Shared with the thread that looks it up; the last owner frees it.
struct Names {
  Names() = default;
  Names(const Names&) = delete;
  Names& operator=(const Names&) = delete;
  ~Names() {
    if (found != nullptr) ::freeaddrinfo(found);
  }
  addrinfo* found = nullptr;
  int failure = 0;

  void look_up(const ControlAddress& address, int flags) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = flags;
    failure = ::getaddrinfo(address.host.c_str(), address.port.c_str(), &hints, &found);
  }
};

/// Parses a numeric address directly. Resolves a name on a separate thread, since the resolver
/// cannot be canceled: if it takes longer than the deadline, the thread finishes on its own.
Result<std::shared_ptr<Names>> resolve(const ControlAddress& address,
                                       std::chrono::steady_clock::time_point deadline) {
  auto names = std::make_shared<Names>();
  names->look_up(address, AI_NUMERICHOST);
  if (names->failure == 0) return names;
  auto done = std::make_shared<std::promise<void>>();
  const auto ready = done->get_future();
  {
    const SignalsBlocked blocked;
    std::thread([names, done, address] {
      names->look_up(address, 0);
      done->set_value();
    }).detach();
  }
  if (ready.wait_until(deadline) != std::future_status::ready) {
    return Error(Errc::kDeadline, "the name was not resolved before the deadline");
  }
  if (names->failure != 0) return Error(Errc::kUnavailable, ::gai_strerror(names->failure));
  return names;
}

Error as_unreachable(const Error& error, const std::string& where) {
  // A missing socket and a refused connection mean the same to the caller: no daemon listens there.
  const bool unreachable = error.code() == Errc::kNotFound || error.code() == Errc::kIo;
  return Error(unreachable ? Errc::kUnavailable : error.code(), where + ": " + error.context());
}

}  // namespace

Result<ControlAddress> ControlAddress::parse(const std::string& text) {
  if (text.rfind("tcp:", 0) == 0) return parse_tcp(text, text.substr(4));
  if (text.rfind("unix:", 0) != 0) {
    return Error(Errc::kInvalidArgument, "\"" + text + "\": expected unix:PATH or tcp:HOST:PORT");
  }
  ControlAddress out;
  out.path = text.substr(5);
  if (out.path.empty() || out.path.size() >= sizeof(sockaddr_un::sun_path)) {
    return Error(Errc::kInvalidArgument, "\"" + text + "\": a socket path has 1 .. " +
                                             std::to_string(sizeof(sockaddr_un::sun_path) - 1) +
                                             " bytes");
  }
  return out;
}

Result<UniqueFd> dial(const ControlAddress& address,
                      std::chrono::steady_clock::time_point deadline) {
  if (address.kind == ControlAddress::Kind::kUnix) {
    sockaddr_un local{};
    local.sun_family = AF_UNIX;
    std::memcpy(local.sun_path, address.path.c_str(), address.path.size());
    auto fd = dial_one(reinterpret_cast<const sockaddr*>(&local), sizeof(local), deadline);
    if (!fd) return as_unreachable(fd.error(), "unix:" + address.path);
    return fd;
  }
  const bool v6 = address.host.find(':') != std::string::npos;
  const std::string where =
      "tcp:" + (v6 ? "[" + address.host + "]" : address.host) + ":" + address.port;
  const auto names = resolve(address, deadline);
  if (!names) return names.error().at(where);
  Error last(Errc::kUnavailable, where + ": no address");
  for (const addrinfo* entry = (*names)->found; entry != nullptr; entry = entry->ai_next) {
    auto fd = dial_one(entry->ai_addr, entry->ai_addrlen, deadline);
    if (fd) return fd;
    last = as_unreachable(fd.error(), where);
  }
  return last;
}

bool is_loopback(const std::string& host) {
  if (host == "localhost") return true;
  in_addr v4{};
  if (::inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24U) == 127;
  in6_addr v6{};
  return ::inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

}  // namespace ho
