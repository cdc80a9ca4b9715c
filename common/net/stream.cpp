#include "common/net/stream.hpp"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace ho::net {
namespace {

constexpr std::size_t kGatheredBytes = std::size_t{16} << 10U;  // a record of TLS
constexpr std::size_t kEncryptedAtOnce = std::size_t{64} << 10U;
/// What the kernel takes beyond what is on its way: more would hide from the owner whether bytes
/// move, and keep the order in which it would send.
constexpr int kUnsentBytes = 1 << 20;
/// On a short path the kernel holds no more than that, which it doubles for its own needs: what is
/// sent while the peer copies is then still in a cache when the peer takes it. The default of
/// net.core.wmem_max gives 416 KiB; in 50 us even this is more than a core can send.
/// Source: tests/perf/RESULTS.md, Transports.
constexpr int kShortPathBytes = 512 << 10;
constexpr std::uint32_t kShortPathUs = 50;

void set_option(int fd, int level, int name, int value) {
  // None of them is needed for being right.
  (void)::setsockopt(fd, level, name, &value, sizeof value);
}

/// An end whose machine is lost says no goodbye. The kernel ends the connection 15 s after the last
/// sign of it, whether or not something is under way.
void set_options(int fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kUnsentBytes);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 2);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 15'000);
}

/// Once the round trip is known. Longer paths have the buffer that the kernel fits to them.
void bound_buffer(int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  const bool known = ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0;
  if (!known || info.tcpi_rtt == 0 || info.tcpi_rtt > kShortPathUs) return;
  set_option(fd, SOL_SOCKET, SO_SNDBUF, kShortPathBytes);
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

Stream::Stream(UniqueFd socket) : socket_(std::move(socket)), connected_(true), established_(true) {
  set_options(socket_.get());
  bound_buffer(socket_.get());
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
  made->connected_ = false;
  made->established_ = false;
  return made;
}

std::size_t Stream::unacknowledged() const {
  int bytes = 0;
  return ::ioctl(socket_.get(), SIOCOUTQ, &bytes) == 0 ? static_cast<std::size_t>(bytes) : 0;
}

Result<void> Stream::accept_tls(const std::shared_ptr<const tls::Context>& context) {
  auto session = tls::Session::accept(context, socket_.get());
  if (!session) return session.error();
  tls_ = std::move(*session);
  established_ = false;
  return {};
}

Result<void> Stream::begin_tls(const std::shared_ptr<const tls::Context>& context,
                               const std::string& name) {
  auto session = tls::Session::connect_to_node(context, socket_.get(), name);
  if (!session) return session.error();
  tls_ = std::move(*session);
  established_ = false;
  return {};
}

Stream::Progress Stream::establish() {
  if (established_) return Progress::kEstablished;
  if (!socket_.valid()) return Progress::kEnded;
  if (!connected_) {
    pollfd entry{socket_.get(), POLLOUT, 0};
    if (::poll(&entry, 1, 0) <= 0) return Progress::kNotYet;
    int error = 0;
    socklen_t length = sizeof error;
    (void)::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) {
      (void)end(error);
      return Progress::kEnded;
    }
    connected_ = true;
    bound_buffer(socket_.get());
  }
  if (tls_) {
    const auto shaken = tls_->handshake();
    if (!shaken) {
      (void)end(shaken.error());
      return Progress::kEnded;
    }
    if (*shaken != tls::Session::Progress::kDone) return Progress::kNotYet;
    tls_->read_ahead();
  }
  established_ = true;
  return Progress::kEstablished;
}

/// Reads until nothing is left or the parts are full: no event reports what OpenSSL holds.
Moved Stream::read_tls(std::span<iovec> parts) {
  std::size_t total_bytes = 0;
  for (const iovec& part : parts) {
    const std::span<std::byte> into(static_cast<std::byte*>(part.iov_base), part.iov_len);
    for (std::size_t have = 0; have < into.size();) {
      const auto got = tls_->read(into.subspan(have));
      if (got && *got > 0) {
        have += *got;
        total_bytes += *got;
        continue;
      }
      const bool nothing = !got && got.error().code() == Errc::kBusy;
      if (nothing || total_bytes > 0) {  // an end shows at the next call
        readable_ = !nothing;
        return {total_bytes, false};
      }
      return got ? end(0) : end(got.error());
    }
  }
  readable_ = true;
  return {total_bytes, false};
}

/// Encrypts 64 KiB at a time, as long as the socket takes what there is.
Moved Stream::write_tls(std::span<iovec> parts) {
  std::size_t taken = 0;
  std::array<std::byte, kGatheredBytes> small;
  std::size_t gathered = 0;
  const auto write_gathered = [&] {
    return tls_->write(std::span(small).first(std::exchange(gathered, 0)));
  };
  auto gone = tls_->flush();
  for (const iovec& part : parts) {
    std::span<const std::byte> from(static_cast<const std::byte*>(part.iov_base), part.iov_len);
    while (gone && *gone && !from.empty()) {
      // Headers and small payloads share records.
      const bool fits = from.size() <= small.size() - gathered;
      if (!fits && gathered > 0) {
        if (auto written = write_gathered(); !written) return end(written.error());
      }
      const std::size_t bytes = std::min(from.size(), kEncryptedAtOnce);
      if (from.size() <= small.size()) {
        std::memcpy(small.data() + gathered, from.data(), from.size());
        gathered += from.size();
      } else {
        if (auto written = tls_->write(from.first(bytes)); !written) return end(written.error());
      }
      taken += bytes;
      from = from.subspan(bytes);
      if (tls_->unsent() >= kEncryptedAtOnce) gone = tls_->flush();
    }
    if (!gone || !*gone) break;
  }
  if (gathered > 0) {
    if (auto written = write_gathered(); !written) return end(written.error());
  }
  if (gone) gone = tls_->flush();
  if (!gone) return end(gone.error());
  writable_ = *gone;
  return {taken, false};
}

Moved Stream::read(std::span<iovec> parts) {
  if (!socket_.valid()) return {0, true};
  if (tls_) return read_tls(parts);
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
  if (tls_) return write_tls(parts);
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

Moved Stream::end(const Error& why) {
  tls_failure_ = why;
  return end(0);
}

Moved Stream::end(int error_number) {
  error_ = error_number;
  socket_.reset();
  return {0, true};
}

Error Stream::failure() const {
  if (tls_failure_) return *tls_failure_;
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
