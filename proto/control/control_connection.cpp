#include "proto/control/control_connection.hpp"

#include <pthread.h>

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>

#include "common/base/check.hpp"
#include "common/system/signals.hpp"
#include "common/tls/context.hpp"
#include "proto/control/control_address.hpp"

namespace ho {

ControlClient::Connection::Connection(Options options)
    : options_(std::move(options)), io_(std::make_unique<asio::io_context>(1)) {}

Result<std::unique_ptr<ControlClient::Connection>> ControlClient::Connection::open(
    Options options, TimePoint deadline) {
  auto address = ControlAddress::parse(options.address);
  if (!address) return address.error();
  FrameChannel::Options channel_options;
  channel_options.receive_descriptors = address->kind == ControlAddress::Kind::kUnix;
  if (address->kind == ControlAddress::Kind::kTcp) {
    if (!options.tls && !options.tls_folder.empty()) {
      auto context = tls::Context::load(tls::files_in(options.tls_folder));
      // The caller named files that cannot be used, whatever the reason.
      if (!context) return Error(Errc::kInvalidArgument, "tls: " + context.error().context());
      options.tls = std::move(*context);
    }
    channel_options.tls = options.tls;
    channel_options.host = address->host;
  }
  auto fd = dial(*address, deadline);
  if (!fd) return fd.error();
  std::unique_ptr<Connection> made(new Connection(std::move(options)));
  made->run(std::move(*fd), std::move(channel_options));
  return made;
}

ControlClient::Connection::~Connection() {
  if (thread_.joinable()) {  // not if the thread could not start
    asio::post(*io_, [this] {
      if (channel_->open()) channel_->close();
      io_->stop();
    });
    thread_.join();
  }
  const Error ended(Errc::kCanceled, options_.address + ": the client was closed");
  for (auto& [id, waiting] : waiting_) {
    if (waiting.done) waiting.done(ended);
  }
}

/// Gives the request its id and a slot for its answer. Call it under the lock.
Result<std::uint64_t> ControlClient::Connection::enlist(control::pb::Request& request, Done done) {
  if (lost_) return *lost_;
  if (waiting_.size() >= control::kWaitingCallsMax) {
    return Error(Errc::kBusy, options_.address + ": too many calls are waiting for answers");
  }
  const std::uint64_t id = next_id_++;
  waiting_[id].done = std::move(done);
  request.set_id(id);
  asio::post(*io_, [this, id, bytes = request.SerializeAsString()] { send(id, bytes); });
  return id;
}

Result<control::Reply> ControlClient::Connection::call(control::pb::Request request,
                                                       TimePoint deadline, Done late) {
  std::unique_lock lock(mutex_);
  const auto id = enlist(request, {});
  if (!id) return id.error();
  Waiting& mine = waiting_.at(*id);  // stays valid while other elements come and go
  while (!mine.result && !lost_) {
    if (changed_.wait_until(lock, deadline) == std::cv_status::timeout) break;
  }
  std::optional<Result<control::Reply>> result = std::move(mine.result);
  if (!result && !lost_ && late) {
    mine.done = std::move(late);
  } else {
    waiting_.erase(*id);
  }
  if (result) return std::move(*result);
  if (lost_) return *lost_;
  return Error(Errc::kDeadline, options_.address + ": no answer before the deadline");
}

Result<void> ControlClient::Connection::start(control::pb::Request request, Done done) {
  HO_CHECK(done != nullptr);
  const std::lock_guard lock(mutex_);
  const auto id = enlist(request, std::move(done));
  if (!id) return id.error();
  return {};
}

void ControlClient::Connection::run(UniqueFd fd, FrameChannel::Options channel_options) {
  const int family = socket_family(fd.get());
  FrameChannel::Socket socket(*io_, asio::generic::stream_protocol(family, 0), fd.release());
  channel_ = std::make_shared<FrameChannel>(std::move(socket), std::move(channel_options));
  FrameChannel::Callbacks callbacks;
  callbacks.on_frame = [this](FrameChannel::Frame frame) { receive(std::move(frame)); };
  callbacks.on_closed = [this](const Error& error) { lose(error); };
  channel_->start(std::move(callbacks));
  // Signals of the host program must not run on this thread.
  const SignalsBlocked blocked;
  thread_ = std::thread([this] {
    const auto work = asio::make_work_guard(*io_);
    io_->run();
  });
  pthread_setname_np(thread_.native_handle(), "ho-control");
}

void ControlClient::Connection::send(std::uint64_t id, const std::string& bytes) {
  if (!channel_->open()) return;  // lose() tells the caller why
  auto sent = channel_->send(bytes, {});
  if (sent) return;
  answer(id, sent.error());
}

void ControlClient::Connection::receive(FrameChannel::Frame frame) {
  control::Reply reply;
  reply.descriptors = std::move(frame.descriptors);
  reply.descriptors_lost = frame.descriptors_lost;
  if (!reply.response.ParseFromString(frame.payload)) {
    channel_->close();
    return lose(control::senseless("the message is not a response"));
  }
  const std::uint64_t id = reply.response.id();
  if (reply.response.has_status()) {
    const control::pb::Status& status = reply.response.status();
    return answer(id, Error(control::errc_from_name(status.code()), status.message()));
  }
  answer(id, std::move(reply));
}

void ControlClient::Connection::answer(std::uint64_t id, Result<control::Reply> result) {
  Done done;
  {
    const std::lock_guard lock(mutex_);
    const auto found = waiting_.find(id);
    if (found == waiting_.end()) return;  // the deadline of its caller has passed
    if (!found->second.done) {
      found->second.result = std::move(result);
      changed_.notify_all();
      return;
    }
    done = std::move(found->second.done);
    waiting_.erase(found);
  }
  done(std::move(result));
}

void ControlClient::Connection::lose(const Error& error) {
  // A refused certificate is nothing that another try would mend.
  const bool refused = error.code() == Errc::kPermissionDenied;
  const Error lost(refused ? error.code() : Errc::kUnavailable,
                   options_.address + ": " + error.context());
  std::vector<Done> to_tell;
  {
    const std::lock_guard lock(mutex_);
    lost_ = lost;
    changed_.notify_all();
    for (auto at = waiting_.begin(); at != waiting_.end();) {
      if (!at->second.done) {
        ++at;
        continue;
      }
      to_tell.push_back(std::move(at->second.done));
      at = waiting_.erase(at);
    }
  }
  closed_.store(true, std::memory_order_release);
  for (const Done& done : to_tell) done(lost);
  if (options_.on_closed) options_.on_closed(lost);
}

}  // namespace ho
