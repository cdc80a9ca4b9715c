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
#include "common/base/unique_fd.hpp"
#include "proto/frame.hpp"

namespace ho {

/// Frames with descriptors over one connected stream socket (Unix or TCP). Both ends of the control
/// connection use it.
///
/// Threads: one owner, the thread that runs the socket's io_context. Lifecycle: make_shared ->
/// start() -> frames -> closed, once: by close() (no callback) or by failure (on_closed).
/// It keeps itself alive while it waits for the socket.
/// Wrong use: calling it from another thread; capturing its own shared_ptr in a callback (the
/// callbacks are dropped at close, which ends such a circle).
class FrameChannel : public std::enable_shared_from_this<FrameChannel> {
 public:
  using Socket = asio::generic::stream_protocol::socket;

  struct Frame {
    std::string payload;
    std::vector<UniqueFd> descriptors;
  };

  /// What several channels may hold unsent together. A channel with nothing unsent may always queue
  /// one frame, so that peers that do not read cannot silence those that do.
  struct SendBudget {
    std::size_t bytes_max = 0;
    std::size_t bytes = 0;
  };

  struct Options {
    bool receive_descriptors = false;  ///< clients do; daemons refuse frames that announce some
    std::chrono::milliseconds frame_time_max{5000};    ///< from a frame's first byte to its last
    std::uint32_t receive_bytes_max = kFrameBytesMax;  ///< payload of one received frame
    std::size_t send_queue_bytes_max = 4 * std::size_t{kFrameBytesMax};
    std::shared_ptr<SendBudget> send_budget;  ///< null: none
  };

  struct Callbacks {
    std::function<void(Frame)> on_frame;
    std::function<void(const Error&)> on_closed;
  };

  FrameChannel(Socket socket, Options options);

  void start(Callbacks callbacks);

  /// Queues one frame. The descriptors are closed here once they are passed on.
  /// @return kUnavailable: closed. kBusy: the peer does not read, the queue is full.
  /// kInvalidArgument: over a frame limit. Nothing is sent then.
  [[nodiscard]] Result<void> send(std::string_view payload, std::vector<UniqueFd> descriptors);

  /// Changes Options::receive_bytes_max for the frames that begin from now on.
  void limit_received(std::uint32_t bytes_max) { decoder_.limit_payload(bytes_max); }

  /// Drops what is queued and closes. No callback. Idempotent.
  void close();
  /// Sends what is queued, then closes; with a deadline of frame_time_max.
  void close_after_sending();

  [[nodiscard]] bool open() const { return socket_.is_open(); }

 private:
  struct Outgoing {
    std::string bytes;
    std::vector<UniqueFd> descriptors;
    std::size_t sent_bytes = 0;
  };

  void wait_readable();
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
  /// Shared with the call that runs one of them, which close() may happen inside.
  std::shared_ptr<Callbacks> callbacks_;
  FrameDecoder decoder_;
  std::deque<UniqueFd> received_descriptors_;
  std::deque<Outgoing> queue_;
  std::size_t queue_bytes_ = 0;
  bool waiting_writable_ = false;
  bool closing_ = false;
  bool timing_frame_ = false;
  std::array<std::byte, 64 * 1024> buffer_;
};

/// AF_UNIX, AF_INET, ...: the family of a socket, for asio::generic::stream_protocol.
[[nodiscard]] int socket_family(int fd);

}  // namespace ho
