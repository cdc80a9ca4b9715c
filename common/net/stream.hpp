#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <span>

#include "common/base/error.hpp"
#include "common/base/result.hpp"
#include "common/base/unique_fd.hpp"
#include "common/net/address.hpp"

namespace ho::net {

/// What a call on a Stream moved.
struct Moved {
  std::size_t bytes = 0;
  bool ended = false;  ///< the connection is over: nothing will move any more
};

/// One connected (or connecting) TCP socket that never blocks. One owner thread. A resource.
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

  /// Goes on connecting. @return whether it is done: then established() or ended for good.
  enum class Progress : std::uint8_t { kNotYet, kEstablished, kEnded };
  [[nodiscard]] Progress establish();

  /// Reads into the parts, one after the other, as much as there is.
  [[nodiscard]] Moved read(std::span<iovec> parts);
  /// Writes from the parts as much as the socket takes.
  [[nodiscard]] Moved write(std::span<iovec> parts);

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

  UniqueFd socket_;
  bool established_ = false;
  bool readable_ = true;
  bool writable_ = true;
  int error_ = 0;  ///< 0: the peer closed it
};

}  // namespace ho::net
