#include "common/net/stream.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

namespace ho::net {
namespace {

void set_option(int fd, int level, int name, int value) {
  // None of them is needed for being right.
  (void)::setsockopt(fd, level, name, &value, sizeof value);
}

/// An end whose machine is lost says no goodbye. The kernel ends the connection 15 s after the last
/// sign of it, whether or not something is under way.
void set_options(int fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 2);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 15'000);
}

std::size_t total(std::span<const iovec> parts) {
  std::size_t bytes = 0;
  for (const iovec& part : parts) bytes += part.iov_len;
  return bytes;
}

msghdr message_of(std::span<iovec> parts) {
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  return message;
}

}  // namespace

Stream::Stream(UniqueFd socket) : socket_(std::move(socket)), established_(true) {
  set_options(socket_.get());
}

Result<std::unique_ptr<Stream>> Stream::connect(const SocketAddress& to,
                                                const SocketAddress* from) {
  UniqueFd socket(::socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return errno_error(errno, "socket");
  if (from != nullptr && from->family() == to.family() &&
      ::bind(socket.get(), from->get(), from->length) != 0) {
    return errno_error(errno, "binding to " + to_text(*from));
  }
  if (::connect(socket.get(), to.get(), to.length) != 0 && errno != EINPROGRESS) {
    return Error(Errc::kUnavailable, errno_error(errno, to_text(to)).context());
  }
  auto made = std::make_unique<Stream>(std::move(socket));
  made->established_ = false;
  return made;
}

Stream::Progress Stream::establish() {
  if (established_) return Progress::kEstablished;
  if (!socket_.valid()) return Progress::kEnded;
  pollfd entry{socket_.get(), POLLOUT, 0};
  if (::poll(&entry, 1, 0) <= 0) return Progress::kNotYet;
  int error = 0;
  socklen_t length = sizeof error;
  (void)::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) {
    (void)end(error);
    return Progress::kEnded;
  }
  established_ = true;
  return Progress::kEstablished;
}

Moved Stream::read(std::span<iovec> parts) {
  if (!socket_.valid()) return {0, true};
  msghdr message = message_of(parts);
  const ssize_t got = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT);
  if (got > 0) {
    const auto bytes = static_cast<std::size_t>(got);
    readable_ = bytes == total(parts);
    return {bytes, false};
  }
  if (got == 0) return end(0);
  if (errno != EAGAIN && errno != EINTR) return end(errno);
  readable_ = false;
  return {};
}

Moved Stream::write(std::span<iovec> parts) {
  if (!socket_.valid()) return {0, true};
  msghdr message = message_of(parts);
  const ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent >= 0) {
    const auto bytes = static_cast<std::size_t>(sent);
    writable_ = bytes == total(parts);
    return {bytes, false};
  }
  if (errno != EAGAIN && errno != EINTR) return end(errno);
  writable_ = false;
  return {};
}

Moved Stream::end(int error_number) {
  error_ = error_number;
  socket_.reset();
  return {0, true};
}

Error Stream::failure() const {
  if (error_ == 0) return Error(Errc::kUnavailable, "the peer closed the connection");
  return Error(Errc::kUnavailable, errno_error(error_, "the connection").context());
}

void Stream::abort() {
  if (!socket_.valid()) return;
  const linger drop{1, 0};
  (void)::setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &drop, sizeof drop);
  socket_.reset();
}

}  // namespace ho::net
