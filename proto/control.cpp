#include "proto/control.hpp"

#include <control.pb.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <atomic>
#include <bit>
#include <condition_variable>
#include <csignal>
#include <iterator>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/units.hpp"
#include "proto/rpc.hpp"

namespace ho {

namespace {

namespace pb = hyperoffload::v1;

constexpr std::size_t kWaitingCallsMax = 1024;
constexpr std::size_t kSegmentsPerReleaseMax = 4096;  // far below what a daemon takes in one frame
static_assert(segments_per_grant_max("local") == kFrameDescriptorsMax);

Errc errc_from_name(const std::string& name) {
  for (int i = static_cast<int>(Errc::kInvalidArgument); i <= static_cast<int>(Errc::kIo); ++i) {
    if (errc_name(static_cast<Errc>(i)) == name) return static_cast<Errc>(i);
  }
  return Errc::kIo;  // a newer daemon's code
}

Error senseless(const std::string& what) {
  return Error(Errc::kCorrupt, "the daemon's answer makes no sense: " + what);
}

/// What came back for one call.
struct Reply {
  pb::Response response;
  std::vector<UniqueFd> descriptors;
};

std::vector<std::string> to_vector(const google::protobuf::RepeatedPtrField<std::string>& from) {
  return {from.begin(), from.end()};
}

}  // namespace

/// Owns socket and I/O thread. The mutex is here because callers block in their own threads while
/// the I/O thread answers them: there is nothing to poll instead.
class ControlClient::Connection {
 public:
  static Result<std::unique_ptr<Connection>> open(Options options, TimePoint deadline) {
    auto address = ControlAddress::parse(options.address);
    if (!address) return address.error();
    auto fd = dial(*address, deadline);
    if (!fd) return fd.error();
    std::unique_ptr<Connection> made(new Connection(std::move(options)));
    made->start(std::move(*fd));
    return made;
  }

  ~Connection() {
    asio::post(io_, [this] {
      if (channel_->open()) channel_->close();
      io_.stop();
    });
    thread_.join();
  }

  /// Sends `request` and waits for its answer. Any thread.
  Result<Reply> call(pb::Request request, TimePoint deadline) {
    std::unique_lock lock(mutex_);
    if (lost_) return *lost_;
    if (waiting_.size() >= kWaitingCallsMax) {
      return Error(Errc::kBusy, options_.address + ": too many calls wait for answers");
    }
    const std::uint64_t id = next_id_++;
    Waiting& mine = waiting_[id];
    request.set_id(id);
    asio::post(io_, [this, id, bytes = request.SerializeAsString()] { send(id, bytes); });
    while (!mine.result && !lost_) {
      if (changed_.wait_until(lock, deadline) == std::cv_status::timeout) break;
    }
    std::optional<Result<Reply>> result = std::move(mine.result);
    waiting_.erase(id);
    if (result) return std::move(*result);
    if (lost_) return *lost_;
    return Error(Errc::kDeadline, options_.address + ": no answer in time");
  }

  [[nodiscard]] bool closed() const { return closed_.load(std::memory_order_acquire); }
  [[nodiscard]] const Options& options() const { return options_; }

  HelloReply hello;

 private:
  struct Waiting {
    std::optional<Result<Reply>> result;
  };

  explicit Connection(Options options) : options_(std::move(options)), io_(1) {}

  void start(UniqueFd fd) {
    const int family = socket_family(fd.get());
    FrameChannel::Socket socket(io_, asio::generic::stream_protocol(family, 0), fd.release());
    FrameChannel::Options channel_options;
    channel_options.receive_descriptors = true;
    channel_ = std::make_shared<FrameChannel>(std::move(socket), channel_options);
    FrameChannel::Callbacks callbacks;
    callbacks.on_frame = [this](FrameChannel::Frame frame) { receive(std::move(frame)); };
    callbacks.on_closed = [this](const Error& error) { lose(error); };
    channel_->start(std::move(callbacks));
    // The host program's signals are not for this thread.
    sigset_t all{};
    sigset_t before{};
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] {
      const auto work = asio::make_work_guard(io_);
      io_.run();
    });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_setname_np(thread_.native_handle(), "ho-control");
  }

  void send(std::uint64_t id, const std::string& bytes) {
    auto sent = channel_->send(bytes, {});
    if (sent) return;
    answer(id, sent.error());
  }

  void receive(FrameChannel::Frame frame) {
    Reply reply;
    reply.descriptors = std::move(frame.descriptors);
    if (!reply.response.ParseFromString(frame.payload)) {
      channel_->close();
      return lose(senseless("not a response"));
    }
    const std::uint64_t id = reply.response.id();
    if (reply.response.has_status()) {
      const pb::Status& status = reply.response.status();
      return answer(id, Error(errc_from_name(status.code()), status.message()));
    }
    answer(id, std::move(reply));
  }

  void answer(std::uint64_t id, Result<Reply> result) {
    const std::lock_guard lock(mutex_);
    const auto found = waiting_.find(id);
    if (found == waiting_.end()) return;  // its caller's deadline has passed
    found->second.result = std::move(result);
    changed_.notify_all();
  }

  void lose(const Error& error) {
    const Error lost(Errc::kUnavailable, options_.address + ": " + error.context());
    {
      const std::lock_guard lock(mutex_);
      lost_ = lost;
      changed_.notify_all();
    }
    closed_.store(true, std::memory_order_release);
    if (options_.on_closed) options_.on_closed(lost);
  }

  const Options options_;
  asio::io_context io_;
  std::shared_ptr<FrameChannel> channel_;  // used on the I/O thread only, once started
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::unordered_map<std::uint64_t, Waiting> waiting_;
  std::uint64_t next_id_ = 1;
  std::optional<Error> lost_;
  std::atomic<bool> closed_{false};
};

namespace {

Result<HelloReply> to_hello(const pb::Response& response) {
  if (!response.has_hello()) return senseless("no hello");
  const pb::HelloResponse& from = response.hello();
  if (from.protocol_version() != kControlProtocolVersion) {
    return Error(Errc::kUnsupported, "the daemon speaks control protocol version " +
                                         std::to_string(from.protocol_version()) + ", not " +
                                         std::to_string(kControlProtocolVersion));
  }
  if (from.node_id() > kNodeIdMax) return senseless("node id out of range");
  if (!std::has_single_bit(from.segment_bytes()) || from.segment_bytes() < kSegmentBytesMin ||
      from.segment_bytes() > kSegmentBytesMax) {
    return senseless("segments of " + std::to_string(from.segment_bytes()) + " bytes");
  }
  HelloReply out;
  out.node = NodeId(static_cast<std::uint16_t>(from.node_id()));
  out.node_name = from.node_name();
  out.boot_id = from.boot_id();
  out.daemon_instance = from.daemon_instance();
  out.segment_bytes = from.segment_bytes();
  for (const auto& driver : from.drivers())
    out.drivers.push_back({driver.driver(), driver.address()});
  return out;
}

template <typename Body>
void put_session(const Session& session, Body* body) {
  body->set_session_id(session.id.value());
  body->set_token(session.token);
}

}  // namespace

ControlClient::ControlClient(std::unique_ptr<Connection> connection)
    : connection_(std::move(connection)) {}
ControlClient::~ControlClient() = default;

Result<std::unique_ptr<ControlClient>> ControlClient::connect(Options options, TimePoint deadline) {
  pb::Request request;
  auto* body = request.mutable_hello();
  body->set_protocol_version(kControlProtocolVersion);
  body->set_client_name(options.client_name);
  body->set_pid(static_cast<std::uint32_t>(::getpid()));
  auto connection = Connection::open(std::move(options), deadline);
  if (!connection) return connection.error();
  auto reply = (*connection)->call(std::move(request), deadline);
  if (!reply) return reply.error();
  auto hello = to_hello(reply->response);
  if (!hello) return hello.error().at((*connection)->options().address);
  (*connection)->hello = std::move(*hello);
  return std::unique_ptr<ControlClient>(new ControlClient(std::move(*connection)));
}

const HelloReply& ControlClient::hello() const { return connection_->hello; }
const std::string& ControlClient::address() const { return connection_->options().address; }
bool ControlClient::closed() const { return connection_->closed(); }

Result<Session> ControlClient::open_session(const std::string& name, TimePoint deadline) {
  pb::Request request;
  request.mutable_open_session()->set_name(name);
  auto reply = connection_->call(std::move(request), deadline);
  if (!reply) return reply.error();
  const auto& body = reply->response.open_session();
  if (body.token().size() != kSessionTokenBytes || body.lease_ms() == 0) {
    return senseless("a session without token or lease");
  }
  Session out;
  out.id = SessionId(body.session_id());
  out.token = body.token();
  out.lease = std::chrono::milliseconds(body.lease_ms());
  return out;
}

Result<std::chrono::milliseconds> ControlClient::renew_lease(const Session& session,
                                                             TimePoint deadline) {
  pb::Request request;
  put_session(session, request.mutable_renew_lease());
  auto reply = connection_->call(std::move(request), deadline);
  if (!reply) return reply.error();
  if (!reply->response.has_renew_lease()) return senseless("no lease");
  return std::chrono::milliseconds(reply->response.renew_lease().lease_ms());
}

Result<void> ControlClient::close_session(const Session& session, TimePoint deadline) {
  pb::Request request;
  put_session(session, request.mutable_close_session());
  auto reply = connection_->call(std::move(request), deadline);
  if (!reply) return reply.error();
  return {};
}

namespace {

Result<std::vector<GrantedSegment>> to_segments(Reply& reply, const GrantSpec& spec) {
  if (!reply.response.has_grant()) return senseless("no grant");
  const auto& body = reply.response.grant();
  const auto count = static_cast<std::size_t>(body.segments_size());
  const bool with_descriptors = spec.driver == "local";
  if (reply.descriptors.size() != (with_descriptors ? count : 0)) {
    return senseless(std::to_string(reply.descriptors.size()) + " descriptors for " +
                     std::to_string(count) + " segments");
  }
  std::vector<GrantedSegment> out;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto& from = body.segments(static_cast<int>(i));
    if (!GlobalAddress::from_bits(from.address())) return senseless("bad address");
    const auto sum = checked_add(bytes, from.bytes());
    if (!sum || from.bytes() == 0) return senseless("bad segment length");
    bytes = *sum;
    GrantedSegment segment;
    segment.id = SegmentId(from.segment_id());
    segment.address_bits = from.address();
    segment.length_bytes = from.bytes();
    segment.key = from.key();
    if (with_descriptors) segment.fd = std::move(reply.descriptors[i]);
    out.push_back(std::move(segment));
  }
  if (bytes < spec.bytes) return senseless("fewer bytes than asked for");
  return out;
}

}  // namespace

Result<std::vector<GrantedSegment>> ControlClient::grant(const Session& session,
                                                         const GrantSpec& spec,
                                                         TimePoint deadline) {
  // hello() has a segment's size checked: no overflow.
  const std::uint64_t per_request = segments_per_grant_max(spec.driver) * hello().segment_bytes;
  std::vector<GrantedSegment> out;
  std::uint64_t left = spec.bytes;
  do {
    GrantSpec part = spec;
    part.bytes = std::min(left, per_request);
    pb::Request request;
    auto* body = request.mutable_grant();
    put_session(session, body);
    body->set_bytes(part.bytes);
    body->set_driver(part.driver);
    body->set_read_only(part.rights == transport::Rights::kRead);
    auto reply = connection_->call(std::move(request), deadline);
    auto segments = reply ? to_segments(*reply, part) : reply.error();
    if (!segments) {
      std::vector<SegmentId> ids;
      for (const auto& segment : out) ids.push_back(segment.id);
      // The first failure is what the caller must hear of; the session's end frees the rest.
      if (!ids.empty()) static_cast<void>(release(session, ids, deadline));
      return segments.error();
    }
    std::move(segments->begin(), segments->end(), std::back_inserter(out));
    left -= part.bytes;
  } while (left > 0);
  return out;
}

Result<void> ControlClient::release(const Session& session, const std::vector<SegmentId>& segments,
                                    TimePoint deadline) {
  for (std::size_t at = 0; at < segments.size(); at += kSegmentsPerReleaseMax) {
    pb::Request request;
    auto* body = request.mutable_release();
    put_session(session, body);
    const std::size_t end = std::min(segments.size(), at + kSegmentsPerReleaseMax);
    for (std::size_t i = at; i < end; ++i) body->add_segment_ids(segments[i].value());
    auto reply = connection_->call(std::move(request), deadline);
    if (!reply) return reply.error();
  }
  return {};
}

Result<std::vector<NodeInfo>> ControlClient::nodes(TimePoint deadline) {
  pb::Request request;
  request.mutable_nodes();
  auto reply = connection_->call(std::move(request), deadline);
  if (!reply) return reply.error();
  if (reply->response.nodes().nodes().empty()) return senseless("no nodes");
  std::vector<NodeInfo> out;
  for (const auto& from : reply->response.nodes().nodes()) {
    if (from.node_id() > kNodeIdMax) return senseless("node id out of range");
    out.push_back({NodeId(static_cast<std::uint16_t>(from.node_id())), from.name(),
                   to_vector(from.control_addresses())});
  }
  return out;
}

Result<NodeStatus> ControlClient::status(TimePoint deadline) {
  pb::Request request;
  request.mutable_status();
  auto reply = connection_->call(std::move(request), deadline);
  if (!reply) return reply.error();
  if (!reply->response.has_status_body()) return senseless("no status");
  const auto& from = reply->response.status_body();
  if (from.node_id() > kNodeIdMax) return senseless("node id out of range");
  NodeStatus out;
  out.node = NodeId(static_cast<std::uint16_t>(from.node_id()));
  out.node_name = from.node_name();
  out.version = from.version();
  out.uptime_ms = from.uptime_ms();
  out.ddr_capacity_bytes = from.ddr_capacity_bytes();
  out.ddr_granted_bytes = from.ddr_granted_bytes();
  out.segment_bytes = from.segment_bytes();
  out.page_kind = from.page_kind();
  out.sessions = from.sessions();
  out.drivers = to_vector(from.drivers());
  out.draining = from.draining();
  for (const pb::FlashPathStatus& path : from.flash()) {
    out.flash.push_back({path.path(), path.capacity_bytes(), path.free_bytes(),
                         path.written_today_bytes(), path.written_total_bytes(),
                         path.write_bytes_per_day_max(), path.read_only()});
  }
  out.flash_off = from.flash_off();
  return out;
}

Result<std::vector<SessionInfo>> ControlClient::sessions(TimePoint deadline) {
  pb::Request request;
  request.mutable_sessions();
  auto reply = connection_->call(std::move(request), deadline);
  if (!reply) return reply.error();
  std::vector<SessionInfo> out;
  for (const auto& from : reply->response.sessions().sessions()) {
    out.push_back({SessionId(from.session_id()), from.name(), from.pid(), from.peer(),
                   from.granted_bytes(), from.lease_left_ms(), from.age_ms()});
  }
  return out;
}

Result<std::vector<SegmentInfo>> ControlClient::segments(TimePoint deadline) {
  std::vector<SegmentInfo> out;
  std::uint64_t last_id = 0;
  for (bool more = true; more;) {
    pb::Request request;
    request.mutable_segments()->set_after_segment_id(last_id);
    auto reply = connection_->call(std::move(request), deadline);
    if (!reply) return reply.error();
    const auto& body = reply->response.segments();
    more = body.more();
    for (const auto& from : body.segments()) {
      if (from.segment_id() <= last_id) return senseless("segments out of order");
      last_id = from.segment_id();
      out.push_back({SegmentId(from.segment_id()), from.address(), from.bytes(),
                     SessionId(from.session_id()), from.driver(), from.page_kind()});
    }
    if (more && body.segments().empty()) return senseless("a page of no segments");
  }
  return out;
}

}  // namespace ho
