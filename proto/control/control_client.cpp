#include "proto/control/control_client.hpp"

#include <control.pb.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <future>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/log.hpp"
#include "common/base/units.hpp"
#include "proto/control/control_connection.hpp"
#include "proto/control/progress_message.hpp"
#include "proto/control/segment_message.hpp"
#include "proto/control/status_message.hpp"

namespace ho {

namespace {

namespace pb = hyperoffload::v1;

constexpr std::uint64_t kResumeMsMax = 600'000;
constexpr std::size_t kSegmentsPerReleaseMax = 4096;  // far below a daemon's limit for one frame
static_assert(segments_per_grant_max("local") == kFrameDescriptorsMax);

using control::put_session;
using control::Reply;
using control::senseless;
using control::too_many_open;

std::vector<std::string> to_vector(const google::protobuf::RepeatedPtrField<std::string>& from) {
  return {from.begin(), from.end()};
}

Result<HelloReply> to_hello(const pb::Response& response) {
  if (!response.has_hello()) return senseless("the hello has no body");
  const pb::HelloResponse& from = response.hello();
  if (from.protocol_version() != kControlProtocolVersion) {
    return Error(Errc::kUnsupported, "the daemon speaks control protocol version " +
                                         std::to_string(from.protocol_version()) + ", not " +
                                         std::to_string(kControlProtocolVersion));
  }
  if (from.node_id() > kNodeIdMax) return senseless("the node id is out of range");
  if (!std::has_single_bit(from.segment_bytes()) || from.segment_bytes() < kSegmentBytesMin ||
      from.segment_bytes() > kSegmentBytesMax) {
    return senseless("the segment size is " + std::to_string(from.segment_bytes()) + " bytes");
  }
  HelloReply out;
  out.node = NodeId(static_cast<std::uint16_t>(from.node_id()));
  out.node_name = from.node_name();
  out.boot_id = from.boot_id();
  out.rack = from.rack();
  out.daemon_instance = from.daemon_instance();
  out.segment_bytes = from.segment_bytes();
  out.incarnation = from.incarnation();
  out.resume = std::chrono::milliseconds(std::min(from.resume_ms(), kResumeMsMax));
  for (const auto& driver : from.drivers()) {
    out.drivers.push_back({driver.driver(), driver.rails()});
  }
  for (const auto& off : from.drivers_off()) {
    out.drivers_off.push_back({off.driver(), off.reason()});
  }
  return out;
}

}  // namespace

ControlClient::ControlClient(std::unique_ptr<Connection> connection)
    : connection_(std::move(connection)) {}
ControlClient::~ControlClient() = default;

Result<std::unique_ptr<ControlClient>> ControlClient::connect(Options options, TimePoint deadline) {
  pb::Request request;
  auto* body = request.mutable_hello();
  body->set_protocol_version(kControlProtocolVersion);
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

Result<Session> ControlClient::open_session(const std::string& name, TimePoint deadline,
                                            const std::string& driver) {
  pb::Request request;
  request.mutable_open_session()->set_name(name);
  request.mutable_open_session()->set_driver(driver);
  auto reply = connection_->call(std::move(request), deadline);
  if (!reply) return reply.error();
  const auto& body = reply->response.open_session();
  if (body.token().size() != kSessionTokenBytes || body.lease_ms() == 0) {
    return senseless("the session has no token or no lease");
  }
  Session out;
  out.id = SessionId(body.session_id());
  out.token = body.token();
  out.lease = std::chrono::milliseconds(body.lease_ms());
  out.address = body.address();
  return out;
}

Result<RenewedLease> ControlClient::renew_lease(const Session& session, TimePoint deadline,
                                                const JobProgress& progress) {
  pb::Request request;
  put_session(session, request.mutable_renew_lease());
  if (progress.any()) {
    put_progress(progress, request.mutable_renew_lease()->mutable_progress());
  }
  auto reply = connection_->call(std::move(request), deadline);
  if (!reply) return reply.error();
  if (!reply->response.has_renew_lease()) return senseless("the answer has no lease");
  const auto& body = reply->response.renew_lease();
  RenewedLease out{std::chrono::milliseconds(body.lease_ms()), body.drained()};
  if (body.has_ending_ms()) out.ending = std::chrono::milliseconds(body.ending_ms());
  return out;
}

Result<void> ControlClient::close_session(const Session& session, TimePoint deadline) {
  pb::Request request;
  put_session(session, request.mutable_close_session());
  return connection_->order(std::move(request), deadline);
}

Result<ResumedSession> ControlClient::resume(const Session& session, TimePoint deadline) {
  pb::Request request;
  put_session(session, request.mutable_resume());
  request.mutable_resume()->set_incarnation(hello().incarnation);
  auto reply = connection_->call(std::move(request), deadline);
  if (!reply) return reply.error();
  if (!reply->response.has_resume()) return senseless("the answer has no session");
  const auto& body = reply->response.resume();
  ResumedSession out;
  out.lease = std::chrono::milliseconds(body.lease_ms());
  out.driver = body.driver();
  out.address = body.address();
  for (const auto& from : body.segments()) {
    out.segments.push_back({SegmentId(from.segment_id()), from.bytes(), from.key()});
  }
  return out;
}

Result<LeftOver> ControlClient::upgrade(Upgrade how, TimePoint deadline) {
  pb::Request request;
  request.mutable_upgrade()->set_force(how == Upgrade::kForced);
  auto reply = connection_->call(std::move(request), deadline);
  if (!reply) return reply.error();
  if (!reply->response.has_upgrade()) return senseless("the answer has no counts");
  return LeftOver{reply->response.upgrade().sessions(), reply->response.upgrade().segments()};
}

Result<DrainLeft> ControlClient::drain(TimePoint deadline) {
  pb::Request request;
  request.mutable_drain();
  auto reply = connection_->call(std::move(request), deadline);
  if (!reply) return reply.error();
  if (!reply->response.has_drain()) return senseless("the answer has no counts");
  const auto& left = reply->response.drain();
  return DrainLeft{left.sessions(), left.granted_bytes(), left.scratch_flash_bytes()};
}

Result<void> ControlClient::undrain(TimePoint deadline) {
  pb::Request request;
  request.mutable_drain()->set_undo(true);
  return connection_->order(std::move(request), deadline);
}

Result<void> ControlClient::evict(SessionId session, TimePoint deadline) {
  pb::Request request;
  request.mutable_evict()->set_session_id(session.value());
  return connection_->order(std::move(request), deadline);
}

namespace {

std::vector<SegmentId> granted_by(const Reply& reply) {
  std::vector<SegmentId> out;
  for (const auto& segment : reply.response.grant().segments()) {
    out.emplace_back(segment.segment_id());
  }
  return out;
}

Result<std::vector<GrantedSegment>> to_segments(Reply& reply, const GrantSpec& spec) {
  if (!reply.response.has_grant()) return senseless("the answer has no grant");
  if (reply.descriptors_lost) return too_many_open();
  auto out = take_segments(reply.response.grant().segments(), std::move(reply.descriptors),
                           spec.driver == "local");
  if (!out) return senseless(out.error().context());
  std::uint64_t bytes = 0;
  for (const GrantedSegment& segment : *out) {
    const auto sum = checked_add(bytes, segment.length_bytes);
    if (!sum || segment.length_bytes == 0) return senseless("a segment has an invalid length");
    bytes = *sum;
  }
  if (bytes < spec.bytes) return senseless("the grant has fewer bytes than requested");
  return out;
}

pb::Request release_request(const Session& session, std::span<const SegmentId> segments) {
  pb::Request request;
  auto* body = request.mutable_release();
  put_session(session, body);
  for (const SegmentId segment : segments) body->add_segment_ids(segment.value());
  return request;
}

}  // namespace

/// Releases memory whose caller has given up waiting; without this it would stay until the session
/// ends. On the I/O thread.
void ControlClient::release_late(Connection& connection, const Session& session,
                                 std::span<const SegmentId> segments) {
  const auto warn = [](const Error& error) {
    log(LogLevel::kWarning, "memory that was granted after the deadline was not released",
        {{"reason", error.message()}});
  };
  const auto started =
      connection.start(release_request(session, segments), [warn](const Result<Reply>& released) {
        if (!released) warn(released.error());
      });
  if (!started) warn(started.error());
}

Result<std::vector<GrantedSegment>> ControlClient::grant(const Session& session,
                                                         const GrantSpec& spec,
                                                         TimePoint deadline) {
  // Cannot overflow: hello() checks the segment size.
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
    if (part.near) body->set_numa_node(part.near->value());
    auto reply =
        connection_->call(std::move(request), deadline,
                          [connection = connection_.get(), session](const Result<Reply>& late) {
                            if (!late) return;
                            const auto granted = granted_by(*late);
                            if (!granted.empty()) release_late(*connection, session, granted);
                          });
    auto segments = reply ? to_segments(*reply, part) : reply.error();
    if (!segments) {
      auto ids = reply ? granted_by(*reply) : std::vector<SegmentId>();
      for (const auto& segment : out) ids.push_back(segment.id);
      // The caller gets the first failure. The end of the session frees the other segments.
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
    const std::size_t count = std::min(segments.size() - at, kSegmentsPerReleaseMax);
    auto reply = connection_->call(release_request(session, std::span(segments).subspan(at, count)),
                                   deadline);
    if (!reply) return reply.error();
  }
  return {};
}

std::future<Result<std::string>> ControlClient::fence(const Session& session,
                                                      const transport::RailFence& rail) {
  pb::Request request;
  auto* body = request.mutable_fence();
  put_session(session, body);
  body->set_rail(rail.rail);
  body->set_generation(rail.generation);
  return connection_->ask(std::move(request), [](const Reply& reply) -> Result<std::string> {
    if (!reply.response.has_fence()) return senseless("no fence");
    return reply.response.fence().address();
  });
}

Result<std::vector<NodeInfo>> ControlClient::nodes(TimePoint deadline) {
  pb::Request request;
  request.mutable_nodes();
  auto reply = connection_->call(std::move(request), deadline);
  if (!reply) return reply.error();
  if (reply->response.nodes().nodes().empty()) return senseless("the answer has no nodes");
  std::vector<NodeInfo> out;
  for (const auto& from : reply->response.nodes().nodes()) {
    if (from.node_id() > kNodeIdMax) return senseless("the node id is out of range");
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
  if (!reply->response.has_status_body()) return senseless("the answer has no status");
  auto out = take_status(reply->response.status_body());
  if (!out) return senseless("the node id is out of range");
  return *std::move(out);
}

Result<std::vector<SessionInfo>> ControlClient::sessions(TimePoint deadline, Names names) {
  pb::Request request;
  request.mutable_sessions()->set_public_(names == Names::kPublic);
  auto reply = connection_->call(std::move(request), deadline);
  if (!reply) return reply.error();
  std::vector<SessionInfo> out;
  for (const auto& from : reply->response.sessions().sessions()) {
    out.push_back({SessionId(from.session_id()), from.name(), from.pid(), from.peer(),
                   from.granted_bytes(), from.lease_left_ms(), from.age_ms(),
                   take_progress(from.progress()), from.scratch_flash_bytes(),
                   from.published_bytes(), from.blocks()});
  }
  return out;
}

Result<EventsPage> ControlClient::events(std::uint64_t after, TimePoint deadline) {
  EventsPage out;
  out.last = after;
  for (bool more = true; more;) {
    pb::Request request;
    request.mutable_events()->set_after(out.last);
    auto reply = connection_->call(std::move(request), deadline);
    if (!reply) return reply.error();
    const auto& body = reply->response.events();
    for (const auto& from : body.events()) {
      const auto kind = static_cast<std::size_t>(from.kind());
      if (kind >= kEventKinds) continue;  // from a later version
      EventInfo event;
      event.number = from.number();
      event.time_ms = from.time_ms();
      event.kind = static_cast<EventKind>(kind);
      event.what = from.what();
      event.session = SessionId(from.session_id());
      event.who = from.who();
      event.detail = from.detail();
      out.events.push_back(std::move(event));
    }
    more = body.more();
    if (more && body.last() <= out.last) return senseless("the events are out of order");
    out.last = body.last();
    out.lost += body.lost();
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
      if (from.segment_id() <= last_id) return senseless("the segments are out of order");
      last_id = from.segment_id();
      const auto address = GlobalAddress::from_bits(from.address());
      if (!address) return senseless("a segment has an invalid address");
      out.push_back({SegmentId(from.segment_id()), *address, from.bytes(),
                     SessionId(from.session_id()), from.driver(), from.page_kind()});
      if (from.has_numa_node()) out.back().numa = NumaNode(from.numa_node());
    }
    if (more && body.segments().empty())
      return senseless("a page is empty, but more should follow");
  }
  return out;
}

}  // namespace ho
