#pragma once

#include <control.pb.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "proto/control/control_client.hpp"
#include "proto/control/frame_channel.hpp"

namespace asio {
class io_context;
}

// Private to this folder: shared by the control_client*.cpp files.
namespace ho::control {

namespace pb = hyperoffload::v1;

inline constexpr std::size_t kWaitingCallsMax = 1024;

[[nodiscard]] inline Errc errc_from_name(const std::string& name) {
  for (int i = static_cast<int>(Errc::kInvalidArgument); i <= static_cast<int>(Errc::kIo); ++i) {
    if (errc_name(static_cast<Errc>(i)) == name) return static_cast<Errc>(i);
  }
  return Errc::kIo;  // a code that only a newer daemon knows
}

[[nodiscard]] inline Error senseless(const std::string& what) {
  return Error(Errc::kCorrupt, "invalid answer of the daemon: " + what);
}

/// For an answer whose descriptors are lost.
[[nodiscard]] inline Error too_many_open() {
  return Error(Errc::kExhausted,
               "this process has as many files open as it may (ulimit -n), and memory of the pool "
               "needs one for each segment");
}

template <typename Body>
void put_session(const Session& session, Body* body) {
  body->set_session_id(session.id.value());
  body->set_token(session.token);
}

/// The answer to one call.
struct Reply {
  pb::Response response;
  std::vector<UniqueFd> descriptors;
  bool descriptors_lost = false;  ///< there were some: FrameChannel::Frame
};

}  // namespace ho::control

namespace ho {

/// Owns the socket and the I/O thread. It needs a mutex because callers block on their own threads
/// while the I/O thread delivers the answers.
class ControlClient::Connection {
 public:
  using Done = std::function<void(Result<control::Reply>)>;

  static Result<std::unique_ptr<Connection>> open(Options options, TimePoint deadline);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// Sends `request` and waits for its answer. Any thread. If the deadline passes first, `late`
  /// later receives what `done` of start() would, to undo the request's effect; it may be empty.
  [[nodiscard]] Result<control::Reply> call(control::pb::Request request, TimePoint deadline,
                                            Done late = {});
  /// call() where the answer says no more than that it was done.
  [[nodiscard]] Result<void> order(control::pb::Request request, TimePoint deadline) {
    const auto reply = call(std::move(request), deadline);
    return reply ? Result<void>() : reply.error();
  }
  /// Sends `request`. Calls `done` once on the I/O thread, with the answer or the loss of the
  /// connection. @return kUnavailable, kBusy: nothing was sent, and `done` is not called.
  [[nodiscard]] Result<void> start(control::pb::Request request, Done done);

  /// Sends `request`. `read` makes a result of its answer, on the I/O thread. The future is ready
  /// with that, or with the loss of the connection; at once where nothing was sent.
  template <typename Read>
  [[nodiscard]] auto ask(control::pb::Request request, Read read)
      -> std::future<std::invoke_result_t<Read, control::Reply&>> {
    using Answer = std::invoke_result_t<Read, control::Reply&>;
    auto promise = std::make_shared<std::promise<Answer>>();
    auto future = promise->get_future();
    const auto started =
        start(std::move(request), [promise, read = std::move(read)](Result<control::Reply> reply) {
          promise->set_value(reply ? read(*reply) : Answer(reply.error()));
        });
    if (!started) promise->set_value(started.error());
    return future;
  }

  [[nodiscard]] bool closed() const { return closed_.load(std::memory_order_acquire); }
  [[nodiscard]] const Options& options() const { return options_; }

  HelloReply hello;

 private:
  struct Waiting {
    std::optional<Result<control::Reply>> result;
    Done done;  ///< empty: a caller waits for the result
  };

  explicit Connection(Options options);
  void run(UniqueFd fd, FrameChannel::Options channel_options);
  [[nodiscard]] Result<std::uint64_t> enlist(control::pb::Request& request, Done done);
  void send(std::uint64_t id, const std::string& bytes);
  void receive(FrameChannel::Frame frame);
  void answer(std::uint64_t id, Result<control::Reply> result);
  void lose(const Error& error);

  const Options options_;
  const std::unique_ptr<asio::io_context> io_;
  std::shared_ptr<FrameChannel> channel_;  // only the I/O thread uses it once that has started
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::unordered_map<std::uint64_t, Waiting> waiting_;
  std::uint64_t next_id_ = 1;
  std::optional<Error> lost_;
  std::atomic<bool> closed_{false};
};

}  // namespace ho
