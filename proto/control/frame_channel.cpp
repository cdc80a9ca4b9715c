#include "proto/control/frame_channel.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/base/check.hpp"

namespace ho {

namespace {

constexpr std::size_t kControlBufferBytes = CMSG_SPACE(sizeof(int) * kFrameDescriptorsMax);
// Descriptors of a frame may arrive with the end of the frame before it, never earlier.
constexpr std::size_t kReceivedMax = 2;
/// Frames before one with descriptors: a peer that does not read must not fill our table of them.
constexpr std::size_t kBeforeDescriptorsMax = 32;
constexpr int kReadsPerWake = 8;
constexpr std::size_t kEncryptedAtOnce = 256 * 1024;
constexpr unsigned char kTlsHandshake = 0x16;  // the first byte of a TLS connection

struct alignas(cmsghdr) ControlBuffer {
  char bytes[kControlBufferBytes] = {};
};

std::vector<UniqueFd> descriptors_of(msghdr& message) {
  std::vector<UniqueFd> out;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      out.emplace_back(fd);
    }
  }
  return out;
}

}  // namespace

FrameChannel::FrameChannel(Socket socket, Options options)
    : socket_(std::move(socket)),
      frame_timer_(socket_.get_executor()),
      options_(std::move(options)) {
  decoder_.limit_payload(options_.receive_bytes_max);
}

void FrameChannel::start(Callbacks callbacks) {
  HO_CHECK(callbacks.on_frame && callbacks.on_closed);
  HO_CHECK(!callbacks_);
  callbacks_ = std::make_shared<Callbacks>(std::move(callbacks));
  std::error_code ignored;
  socket_.native_non_blocking(true, ignored);
  if (!options_.tls) return wait_readable();
  security_ = Security::kUndecided;
  if (options_.host.empty()) return wait_readable();
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    if (self->open()) self->on_readable();  // speaks first
  });
}

void FrameChannel::wait_readable() {
  socket_.async_wait(Socket::wait_read, [self = shared_from_this()](std::error_code error) {
    if (!self->open()) return;
    if (error) return self->fail(Error(Errc::kUnavailable, error.message()));
    self->on_readable();
  });
}

void FrameChannel::wait_writable() {
  if (std::exchange(waiting_writable_, true)) return;
  socket_.async_wait(Socket::wait_write, [self = shared_from_this()](std::error_code error) {
    self->waiting_writable_ = false;
    if (!self->open()) return;
    if (error) return self->fail(Error(Errc::kUnavailable, error.message()));
    if (self->security_ == Security::kHandshake) return self->on_readable();
    self->send_queued();
  });
}

/// Chooses TLS, where this end dialed or the peer's first byte says so.
Result<void> FrameChannel::decide() {
  const bool dialed = !options_.host.empty();
  if (!dialed) {
    unsigned char first = 0;
    const ssize_t got = ::recv(socket_.native_handle(), &first, 1, MSG_PEEK | MSG_DONTWAIT);
    if (got == 0) return Error(Errc::kUnavailable, "the peer closed the connection");
    if (got < 0) return errno_error(errno, "receive");
    if (first != kTlsHandshake) {
      security_ = Security::kPlain;
      return {};
    }
  }
  auto session = dialed
                     ? tls::Session::connect(options_.tls, socket_.native_handle(), options_.host)
                     : tls::Session::accept(options_.tls, socket_.native_handle());
  if (!session) return session.error();
  tls_ = std::move(*session);
  security_ = Security::kHandshake;
  return {};
}

/// Goes on with the handshake. @return kBusy: it waits for the socket.
Result<void> FrameChannel::shake() {
  if (security_ == Security::kUndecided) {
    if (auto decided = decide(); !decided) return decided.error();
  }
  if (security_ != Security::kHandshake) return {};
  const auto progress = tls_->handshake();
  if (!progress) return progress.error();
  if (*progress == tls::Session::Progress::kWantsWrite) wait_writable();
  if (*progress != tls::Session::Progress::kDone) return Error(Errc::kBusy, "in the handshake");
  security_ = Security::kSecure;
  send_queued();
  return {};
}

void FrameChannel::on_readable() {
  if (const auto shaken = shake(); !shaken) {
    if (shaken.error().code() != Errc::kBusy) return fail(shaken.error());
    return waiting_writable_ ? void() : wait_readable();
  }
  // Bounded, so that one busy peer does not delay the others.
  for (int i = 0; i < kReadsPerWake && open(); ++i) {
    auto received = receive();
    if (!received) {
      if (received.error().code() == Errc::kBusy) break;
      return fail(received.error());
    }
    if (*received == 0) return fail(Error(Errc::kUnavailable, "the peer closed the connection"));
    if (auto taken = take_bytes(std::span(buffer_).first(*received)); !taken) {
      return fail(taken.error());
    }
  }
  if (!open()) return;
  watch_frame_time();
  read_later();
}

void FrameChannel::read_later() {
  // No event reports bytes that have left the socket already.
  if (!tls_ || !tls_->has_pending()) return wait_readable();
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    if (self->open()) self->on_readable();
  });
}

Result<std::size_t> FrameChannel::receive() {
  if (!tls_) return receive_plain();
  auto received = tls_->read(buffer_);
  if (tls_->unsent() > 0) wait_writable();  // an answer of TLS itself
  return received;
}

Result<std::size_t> FrameChannel::receive_plain() {
  iovec vector{buffer_.data(), buffer_.size()};
  ControlBuffer control;
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  if (options_.receive_descriptors) {
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof(control.bytes);
  }
  // Without a control buffer, the kernel closes descriptors that a peer sends.
  ssize_t count = 0;
  do {
    count = ::recvmsg(socket_.native_handle(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  } while (count < 0 && errno == EINTR);
  if (count < 0) return errno_error(errno, "receive");
  if (options_.receive_descriptors) {
    Received received{descriptors_of(message), (message.msg_flags & MSG_CTRUNC) != 0};
    if (received.lost && received.descriptors.size() == kFrameDescriptorsMax) {
      return Error(Errc::kExhausted, "descriptors were lost: too many in the frame");
    }
    if (!received.descriptors.empty() || received.lost) received_.push_back(std::move(received));
    if (received_.size() > kReceivedMax) {
      return Error(Errc::kCorrupt, "more descriptors arrived than the frames announced");
    }
  }
  return static_cast<std::size_t>(count);
}

Result<void> FrameChannel::take_bytes(std::span<const std::byte> bytes) {
  const auto running = callbacks_;
  while (!bytes.empty() && open() && !closing_) {
    auto taken = decoder_.feed(bytes);
    if (!taken) return taken.error();
    bytes = bytes.subspan(*taken);
    if (decoder_.state() != FrameDecoder::State::kReady) break;
    auto decoded = decoder_.take();
    timing_frame_ = false;
    Frame frame;
    frame.payload = std::move(decoded.payload);
    if (decoded.descriptors > 0) {
      if (received_.empty()) {
        return Error(Errc::kCorrupt, "a frame announced descriptors that did not arrive");
      }
      Received received = std::move(received_.front());
      received_.pop_front();
      frame.descriptors_lost = received.lost;
      if (!received.lost) {
        if (received.descriptors.size() != decoded.descriptors) {
          return Error(Errc::kCorrupt, "a frame came with other descriptors than it announced");
        }
        frame.descriptors = std::move(received.descriptors);
      }
    }
    running->on_frame(std::move(frame));
  }
  return {};
}

void FrameChannel::watch_frame_time() {
  if (!decoder_.mid_frame()) {
    frame_timer_.cancel();
    timing_frame_ = false;
    return;
  }
  if (timing_frame_) return;
  timing_frame_ = true;
  frame_timer_.expires_after(options_.frame_time_max);
  frame_timer_.async_wait([weak = weak_from_this()](std::error_code error) {
    const auto self = weak.lock();
    if (error || !self || !self->open() || !self->timing_frame_) return;
    self->fail(Error(Errc::kDeadline, "a frame took too long to arrive"));
  });
}

Result<void> FrameChannel::send(std::string_view payload, std::vector<UniqueFd> descriptors) {
  if (!open() || closing_) return Error(Errc::kUnavailable, "the connection is closed");
  if (!descriptors.empty() && queue_.size() >= kBeforeDescriptorsMax) {
    return Error(Errc::kBusy, "the peer does not read its answers");
  }
  auto bytes = encode_frame(payload, descriptors.size());
  if (!bytes) return bytes.error();
  if (queue_bytes_ + bytes->size() > options_.send_queue_bytes_max) {
    return Error(Errc::kBusy, "the peer does not read its answers");
  }
  if (SendBudget* const budget = options_.send_budget.get()) {
    if (queue_bytes_ > 0 && budget->bytes + bytes->size() > budget->bytes_max) {
      return Error(Errc::kBusy, "this peer and others do not read their answers");
    }
    budget->bytes += bytes->size();
  }
  queue_bytes_ += bytes->size();
  queue_.push_back(Outgoing{std::move(*bytes), std::move(descriptors), 0});
  const bool ready = security_ == Security::kPlain || security_ == Security::kSecure;
  if (ready && !waiting_writable_) send_queued();
  return {};
}

/// Encrypts a part once all before it has gone.
Result<std::size_t> FrameChannel::send_secure(Outgoing& out) {
  HO_CHECK(out.descriptors.empty());  // no Unix socket
  const auto gone = tls_->flush();
  if (!gone) return gone.error();
  if (!*gone) return Error(Errc::kBusy, "the socket is full");
  const std::size_t bytes = std::min(out.bytes.size() - out.sent_bytes, kEncryptedAtOnce);
  const auto written =
      tls_->write(std::as_bytes(std::span(out.bytes)).subspan(out.sent_bytes, bytes));
  if (!written) return written.error();
  if (auto flushed = tls_->flush(); !flushed) return flushed.error();
  return bytes;
}

Result<std::size_t> FrameChannel::send_some(Outgoing& out) {
  if (tls_) return send_secure(out);
  iovec vector{out.bytes.data() + out.sent_bytes, out.bytes.size() - out.sent_bytes};
  ControlBuffer control;
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  if (!out.descriptors.empty()) {
    HO_CHECK(out.sent_bytes == 0);
    message.msg_control = control.bytes;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * out.descriptors.size());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * out.descriptors.size());
    for (std::size_t i = 0; i < out.descriptors.size(); ++i) {
      const int fd = out.descriptors[i].get();
      std::memcpy(CMSG_DATA(header) + i * sizeof(int), &fd, sizeof(int));
    }
  }
  ssize_t count = 0;
  do {
    count = ::sendmsg(socket_.native_handle(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (count < 0 && errno == EINTR);
  if (count < 0) return errno_error(errno, "send");
  out.descriptors.clear();
  return static_cast<std::size_t>(count);
}

void FrameChannel::send_queued() {
  while (!queue_.empty() && open()) {
    Outgoing& out = queue_.front();
    auto sent = send_some(out);
    if (!sent && sent.error().code() == Errc::kBusy) return wait_writable();
    if (!sent) {
      // Deferred: send() must not run its own caller's callback.
      const Error error(Errc::kUnavailable, sent.error().context());
      queue_.clear();
      forget_unsent(queue_bytes_);
      asio::post(socket_.get_executor(), [self = shared_from_this(), error] {
        if (self->open()) self->fail(error);
      });
      return;
    }
    out.sent_bytes += *sent;
    if (out.sent_bytes < out.bytes.size()) continue;
    forget_unsent(out.bytes.size());
    queue_.pop_front();
  }
  if (tls_ && open()) {
    const auto gone = tls_->flush();
    if (gone && !*gone) return wait_writable();  // an error shows when the socket is read
  }
  if (closing_) close();
}

void FrameChannel::forget_unsent(std::size_t bytes) {
  HO_CHECK(bytes <= queue_bytes_);
  queue_bytes_ -= bytes;
  if (options_.send_budget) options_.send_budget->bytes -= bytes;
}

void FrameChannel::fail(const Error& error) {
  HO_CHECK(open());
  const auto running = callbacks_;
  const auto self = shared_from_this();
  close();
  running->on_closed(error);
}

void FrameChannel::close() {
  std::error_code ignored;
  socket_.close(ignored);
  frame_timer_.cancel();
  queue_.clear();
  forget_unsent(queue_bytes_);
  received_.clear();
  callbacks_.reset();
}

void FrameChannel::close_after_sending() {
  if (!open()) return;
  closing_ = true;
  if (queue_.empty() && (!tls_ || tls_->unsent() == 0)) return close();
  frame_timer_.expires_after(options_.frame_time_max);
  frame_timer_.async_wait([weak = weak_from_this()](std::error_code error) {
    const auto self = weak.lock();
    if (!error && self && self->open()) self->close();
  });
}

int socket_family(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return AF_UNSPEC;
  return address.ss_family;
}

}  // namespace ho
