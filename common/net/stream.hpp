#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "common/base/error.hpp"
#include "common/base/result.hpp"
#include "common/net/address.hpp"
#include "common/system/unique_fd.hpp"
#include "common/tls/session.hpp"

namespace ho::net {

/// What a call on a Stream moved.
struct Moved {
  std::size_t bytes = 0;
  bool ended = false;  ///< the connection is over: nothing will move any more
};

/// One connected (or connecting) TCP socket that never blocks, with or without TLS. One owner
/// thread. A resource.
///
/// With TLS, write() takes bytes when it has encrypted them: the caller may change them then. What
/// the socket has not taken yet is unsent(); further calls of write(), also without parts, send it.
///
/// `readable` and `writable` are guesses that save system calls: they turn false when a call moves
/// less than it was asked to, and true by the owner's word, as after an event of epoll's.
class Stream {
 public:
  /// Takes a connected, non-blocking socket.
  explicit Stream(UniqueFd socket);
  /// Begins to connect. @return kUnavailable, kExhausted.
  [[nodiscard]] static Result<std::unique_ptr<Stream>> connect(const SocketAddress& to,
                                                               const SocketAddress* from);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() = default;

  [[nodiscard]] int fd() const { return socket_.get(); }

  /// Before the first byte: this end accepts TLS. @return kExhausted.
  [[nodiscard]] Result<void> accept_tls(const std::shared_ptr<const tls::Context>& context);
  /// Before the first byte: this end begins TLS, with the daemon of that name.
  [[nodiscard]] Result<void> begin_tls(const std::shared_ptr<const tls::Context>& context,
                                       const std::string& name);
  /// The certificate of the peer of an established connection; null: without TLS.
  [[nodiscard]] const tls::CertificateFacts* peer() const {
    return tls_ && established_ ? &tls_->peer() : nullptr;
  }

  /// Goes on connecting, with the handshake of TLS.
  /// @return whether it is done: then established() or ended for good.
  enum class Progress : std::uint8_t { kNotYet, kEstablished, kEnded };
  [[nodiscard]] Progress establish();
  [[nodiscard]] bool established() const { return established_; }

  /// Reads into the parts, one after the other, as much as there is.
  [[nodiscard]] Moved read(std::span<iovec> parts);
  /// Writes from the parts as much as the socket takes.
  [[nodiscard]] Moved write(std::span<iovec> parts);

  /// Bytes that the kernel has taken and the peer's machine has not acknowledged. A system call.
  [[nodiscard]] std::size_t unacknowledged() const;
  /// Bytes that write() has taken and the socket has not.
  [[nodiscard]] std::size_t unsent() const { return tls_ ? tls_->unsent() : 0; }

  [[nodiscard]] bool readable() const { return readable_; }
  [[nodiscard]] bool writable() const { return writable_; }
  void set_readable() { readable_ = true; }
  void set_writable() { writable_ = true; }

  /// Why it ended. kUnavailable.
  [[nodiscard]] Error failure() const;
  /// Drops what is not sent yet, tells the peer by a reset, and closes.
  void abort();

 private:
  [[nodiscard]] Moved end(int error_number);
  [[nodiscard]] Moved end(const Error& why);
  [[nodiscard]] Moved read_tls(std::span<iovec> parts);
  [[nodiscard]] Moved write_tls(std::span<iovec> parts);

  UniqueFd socket_;
  std::unique_ptr<tls::Session> tls_;  ///< uses the socket; null: without TLS
  std::optional<Error> tls_failure_;
  bool connected_ = false;
  bool established_ = false;  ///< connected, and TLS's handshake done
  bool readable_ = true;
  bool writable_ = true;
  int error_ = 0;  ///< 0: the peer closed it
};

}  // namespace ho::net
