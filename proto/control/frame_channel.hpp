#pragma once

#include <array>
#include <asio/generic/stream_protocol.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "common/base/result.hpp"
#include "common/system/unique_fd.hpp"
#include "common/tls/session.hpp"
#include "proto/control/frame.hpp"

namespace ho {

/// Sends and receives frames with descriptors over one connected stream socket (Unix or TCP). Both
/// ends of a control connection use it.
///
/// Threads: owned by the thread that runs the socket's io_context. Lifecycle: make_shared ->
/// start() -> frames -> closed, once, by close() (no callback) or by a failure (on_closed). The
/// object keeps itself alive while it waits for the socket. Wrong use: a call from another thread.
/// A callback may capture the channel's shared_ptr only because closing drops the callbacks.
class FrameChannel : public std::enable_shared_from_this<FrameChannel> {
 public:
  using Socket = asio::generic::stream_protocol::socket;

  struct Frame {
    std::string payload;
    std::vector<UniqueFd> descriptors;
    /// Not all could be received, since this process has as many open as it may: none is here.
    bool descriptors_lost = false;
  };

  /// Limit for the unsent bytes of several channels together. A channel with nothing unsent may
  /// always queue one frame, so that peers that do not read cannot block those that do.
  struct SendBudget {
    std::size_t bytes_max = 0;
    std::size_t bytes = 0;
  };

  struct Options {
    bool receive_descriptors = false;  ///< true for clients; daemons refuse frames with descriptors
    std::chrono::milliseconds frame_time_max{5000};  ///< from the first to the last byte of a frame
    std::uint32_t receive_bytes_max = kFrameBytesMax;  ///< largest payload of a received frame
    std::size_t send_queue_bytes_max = 4 * std::size_t{kFrameBytesMax};
    std::shared_ptr<SendBudget> send_budget;  ///< null: none
    /// Encrypts, and checks the peer's certificate; null: neither.
    std::shared_ptr<const tls::Context> tls;
    /// With tls: the host that was dialed. Empty: this end accepted the connection. Then a peer
    /// that does not begin with TLS is read as it is, and peer() stays null: refuse it.
    std::string host;
  };

  struct Callbacks {
    std::function<void(Frame)> on_frame;
    std::function<void(const Error&)> on_closed;
  };

  FrameChannel(Socket socket, Options options);

  void start(Callbacks callbacks);

  /// Queues one frame. Takes the descriptors and closes them after sending.
  /// @return kUnavailable: closed. kBusy: the queue is full because the peer does not read.
  /// kInvalidArgument: a frame limit is exceeded. On an error nothing is sent.
  [[nodiscard]] Result<void> send(std::string_view payload, std::vector<UniqueFd> descriptors);

  /// Changes Options::receive_bytes_max for frames that begin from now on.
  void limit_received(std::uint32_t bytes_max) { decoder_.limit_payload(bytes_max); }

  /// Drops the queue and closes. Runs no callback. Idempotent.
  void close();
  /// Sends the queue, then closes; at the latest after frame_time_max.
  void close_after_sending();

  [[nodiscard]] bool open() const { return socket_.is_open(); }
  /// What the peer's certificate says, from the first frame on; null: it speaks without TLS.
  [[nodiscard]] const tls::CertificateFacts* peer() const {
    return security_ == Security::kSecure ? &tls_->peer() : nullptr;
  }

 private:
  struct Outgoing {
    std::string bytes;
    std::vector<UniqueFd> descriptors;
    std::size_t sent_bytes = 0;
  };

  /// undecided: this end accepted, and the first byte tells whether the peer speaks TLS.
  enum class Security : std::uint8_t { kPlain, kUndecided, kHandshake, kSecure };

  void wait_readable();
  void wait_writable();
  void read_later();
  [[nodiscard]] Result<void> decide();
  [[nodiscard]] Result<void> shake();
  [[nodiscard]] Result<std::size_t> receive_plain();
  [[nodiscard]] Result<std::size_t> send_secure(Outgoing& out);
  void on_readable();
  [[nodiscard]] Result<std::size_t> receive();
  [[nodiscard]] Result<void> take_bytes(std::span<const std::byte> bytes);
  void watch_frame_time();
  void send_queued();
  [[nodiscard]] Result<std::size_t> send_some(Outgoing& out);
  void fail(const Error& error);
  void forget_unsent(std::size_t bytes);

  Socket socket_;
  asio::steady_timer frame_timer_;
  const Options options_;
  /// Shared with the running call of a callback, inside which close() may happen.
  std::shared_ptr<Callbacks> callbacks_;
  Security security_ = Security::kPlain;
  std::unique_ptr<tls::Session> tls_;  ///< from kHandshake on
  FrameDecoder decoder_;
  /// One frame's, which arrive together.
  struct Received {
    std::vector<UniqueFd> descriptors;
    bool lost = false;  ///< some more were sent
  };
  std::deque<Received> received_;
  std::deque<Outgoing> queue_;
  std::size_t queue_bytes_ = 0;
  bool waiting_writable_ = false;
  bool closing_ = false;
  bool timing_frame_ = false;
  std::array<std::byte, 64 * 1024> buffer_;
};

/// The address family of a socket (AF_UNIX, AF_INET, ...), for asio::generic::stream_protocol.
[[nodiscard]] int socket_family(int fd);

}  // namespace ho
