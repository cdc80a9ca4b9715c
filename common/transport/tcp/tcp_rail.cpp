#include "common/transport/tcp/tcp_rail.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "common/base/check.hpp"
#include "common/transport/striping/initiator.hpp"

namespace ho::transport {
namespace tcp {
namespace {

/// Small operations come one after the other: the next is expected for so long.
constexpr Duration kSmallLinger = std::chrono::milliseconds(5);

class TcpRegion final : public RemoteRegion {
 public:
  TcpRegion(const SegmentKey& key, std::uint64_t length, Rights allowed)
      : RemoteRegion(length, allowed), segment(key.segment), generation(key.generation) {}
  const std::uint32_t segment;
  const std::uint32_t generation;
};

}  // namespace

TcpDriver::TcpDriver(const TcpOptions& options, std::optional<net::SocketAddress> source,
                     const Clock& clock)
    : options_(options), source_(source), clock_(clock) {
  caps_.name = "tcp";
  caps_.op_bytes_max = kLengthMax;
  caps_.depth_ops_max = options.depth_ops_max;
  caps_.needs_peer_progress = true;
  caps_.gives_back = true;
  caps_.patient = true;
  caps_.has_classes = true;
}

Result<std::unique_ptr<net::Stream>> TcpDriver::open_stream(const Route& route) const {
  auto stream = net::Stream::connect(route.to.where, source_ ? &*source_ : nullptr);
  if (!stream || !route.tls) return stream;
  if (auto begun = (*stream)->begin_tls(route.tls, route.to.name); !begun) return begun.error();
  return stream;
}

Result<std::unique_ptr<Rail>> TcpDriver::connect(const RailSpec& spec) {
  const auto to = decode_rail(spec.address);
  if (!to) return to.error();
  if (spec.session.token.size() != kTokenBytes) {
    return Error(Errc::kInvalidArgument, "no session's token to show to the target");
  }
  Route route{*to, nullptr};
  if (!to->name.empty()) {
    if (options_.tls_folder.empty()) {
      return Error(Errc::kPermissionDenied,
                   "the daemon wants TLS for tcp; name the folder of your certificate: --tls or "
                   "HYPEROFFLOAD_TLS (a job: the option tls)");
    }
    auto loaded = tls::Context::load(tls::files_in(options_.tls_folder));
    if (!loaded) return loaded.error();
    route.tls = std::move(*loaded);
  }
  std::vector<std::unique_ptr<net::Stream>> streams;
  while (streams.size() < 1 + options_.connections) {
    auto stream = open_stream(route);
    if (!stream) return stream.error();
    streams.push_back(std::move(*stream));
  }
  return std::unique_ptr<Rail>(
      std::make_unique<TcpRail>(*this, spec, std::move(route), std::move(streams)));
}

Result<std::unique_ptr<RemoteRegion>> TcpDriver::open_region(const RegionGrant& grant,
                                                             std::size_t /*rails*/) {
  const auto key = decode_key(grant.key);
  if (!key) return key.error();
  if (key->length_bytes < grant.length_bytes) {
    return Error(Errc::kInvalidArgument, "the grant's length is not its key's");
  }
  const Rights rights = grant.rights == Rights::kRead ? Rights::kRead : key->rights;
  return std::unique_ptr<RemoteRegion>(
      std::make_unique<TcpRegion>(*key, grant.length_bytes, rights));
}

std::size_t TcpDriver::chunk_bytes() const {
  return now_ - small_moved_ < kSmallLinger ? kChunkBesideSmallBytes : kChunkBytes;
}

TcpRail::TcpRail(TcpDriver& driver, const RailDriver::RailSpec& spec, TcpDriver::Route route,
                 std::vector<std::unique_ptr<net::Stream>> streams)
    : driver_(driver), spec_(spec), route_(std::move(route)) {
  lanes_.reserve(streams.size() + kLaneKinds);
  for (auto& stream : streams) {
    lanes_.emplace_back(lanes_.empty() ? LaneKind::kSmall : LaneKind::kLarge, std::move(stream));
  }
}

/// The open one of that kind with the least to move, else a large one.
TcpRail::Lane& TcpRail::lane_for(LaneKind kind) {
  const auto open_one = [this](LaneKind wanted) {
    Lane* best = nullptr;
    for (Lane& lane : lanes_) {
      if (!lane.open || lane.kind != wanted) continue;
      if (best == nullptr || lane.bytes < best->bytes) best = &lane;
    }
    return best;
  };
  if (Lane* const own = open_one(kind)) return *own;
  const auto is_own = [kind](const Lane& lane) { return lane.kind == kind; };
  if (std::none_of(lanes_.begin(), lanes_.end(), is_own)) open_lane(kind);
  return *open_one(LaneKind::kLarge);  // all of these are open
}

void TcpRail::open_lane(LaneKind kind) {
  auto stream = driver_.open_stream(route_);
  Lane& lane = lanes_.emplace_back(kind, stream ? std::move(*stream) : nullptr);
  lane.absent = !stream;
}

bool TcpRail::post(RailOp& op) {
  HO_CHECK(state_ == State::kOpen);
  Lane& lane = lane_for(op.kind());
  if (lane.next - lane.first == kLaneOpsMax) return false;
  const auto& region = static_cast<const TcpRegion&>(*op.region);
  Request request;
  request.op = op.is_get ? OpCode::kGet : OpCode::kPut;
  request.id = lane.next;
  request.segment = region.segment;
  request.generation = region.generation;
  request.offset = op.offset_bytes;
  request.length = op.length_bytes;
  const bool first = lane.idle();
  lane.at(lane.next++) = &op;
  lane.bytes += op.length_bytes;
  lane.out.push(request, op.is_get ? nullptr : op.bytes, op.is_get ? 0 : op.length_bytes);
  if (lane.kind == LaneKind::kSmall) driver_.small_moved();
  // Those that follow soon share a call with each other.
  if (first && lane.out.flush(*lane.stream, driver_.chunk_bytes()).ended) {
    fail(lane.stream->failure());
  }
  return true;
}

bool TcpRail::progress(std::vector<RailOp*>& ended) {
  bool moved = false;
  switch (state_) {
    case State::kConnecting:
      for (Lane& lane : lanes_) {
        if (state_ != State::kConnecting) break;
        const auto greeted = greet(lane);
        if (!greeted) fail(greeted.error());
        moved = !greeted || *greeted || moved;
      }
      if (state_ == State::kConnecting &&
          std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.open; })) {
        state_ = State::kOpen;
      }
      return moved;
    case State::kOpen:
      for (Lane& lane : lanes_) {
        if (state_ != State::kOpen) break;
        if (lane.absent) continue;
        if (lane.open) {
          moved = (!lane.idle() && move(lane, ended)) || moved;
        } else if (!greet(lane)) {  // one that the rail can do without
          lane.stream->abort();
          lane.absent = true;
        }
      }
      return moved;
    case State::kClosing:
      for (Lane& lane : lanes_) {
        while (!lane.idle()) end_first(lane, Errc::kUnavailable, ended);
      }
      state_ = State::kClosed;
      return true;
    case State::kFailed:
    case State::kClosed: break;
  }
  return false;
}

/// @return whether anything moved; why the connection cannot be had.
Result<bool> TcpRail::greet(Lane& lane) {
  if (lane.open) return false;
  switch (lane.stream->establish()) {
    case net::Stream::Progress::kNotYet: return false;
    case net::Stream::Progress::kEnded: return lane.stream->failure();
    case net::Stream::Progress::kEstablished: break;
  }
  if (!std::exchange(lane.asked, true)) {
    Hello hello;
    hello.rail = static_cast<std::uint8_t>(spec_.number);
    hello.lane = lane.kind;
    hello.generation = spec_.generation;
    hello.session = spec_.session.session.value();
    std::memcpy(hello.token.data(), spec_.session.token.data(), kTokenBytes);
    iovec part{&hello, sizeof hello};
    if (lane.stream->write({&part, 1}).bytes != sizeof hello) return lane.stream->failure();
    return true;
  }
  std::optional<Error> refused;
  const auto moved = lane.in.receive(
      *lane.stream, driver_.staging(), kStagingBytes,
      [&](std::span<const std::byte, sizeof(Answer)> head) {
        Answer answer;
        std::memcpy(&answer, head.data(), sizeof answer);
        if (answer.magic != kMagic || answer.id != 0 || answer.length != 0 || lane.open) {
          refused.emplace(Errc::kInvalidArgument, "it does not answer as a target of this version");
          return false;
        }
        lane.open = answer.status == Status::kOk;
        if (!lane.open) {
          refused.emplace(Errc::kPermissionDenied, "the target does not take the session");
        }
        return lane.open;
      },
      [] { return false; });
  if (refused) return *refused;
  if (moved.ended) return lane.stream->failure();
  return moved.bytes > 0;
}

/// One call's worth each way. @return whether anything came or was acknowledged.
bool TcpRail::move(Lane& lane, std::vector<RailOp*>& ended) {
  net::Moved sent;
  const std::size_t unsent = lane.stream->unsent();
  bool acknowledged = false;
  if (!lane.out.empty() || unsent > 0) {
    acknowledged = lane.stream->unacknowledged() < lane.unacknowledged;
    sent = lane.out.flush(*lane.stream, driver_.chunk_bytes());
    lane.unacknowledged = sent.ended ? 0 : lane.stream->unacknowledged();
  }
  net::Moved got;
  if (!sent.ended) {
    got = lane.in.receive(
        *lane.stream, driver_.staging(), driver_.chunk_bytes(),
        [&](std::span<const std::byte, sizeof(Answer)> head) {
          Answer answer;
          std::memcpy(&answer, head.data(), sizeof answer);
          return take_answer(lane, answer, ended);
        },
        [&] {
          end_first(lane, Errc::kOk, ended);
          return true;
        });
  }
  const bool sends = sent.bytes > 0 || lane.stream->unsent() < unsent;
  if ((sends || got.bytes > 0) && lane.kind == LaneKind::kSmall) driver_.small_moved();
  // Bytes that the kernel takes say nothing of a peer that is cut off.
  const bool moved = got.bytes > 0 || acknowledged;
  if ((sent.ended || got.ended) && state_ != State::kFailed) fail(lane.stream->failure());
  return moved;
}

/// @return false: our targets do not answer so.
bool TcpRail::take_answer(Lane& lane, const Answer& answer, std::vector<RailOp*>& ended) {
  const auto senseless = [&] {
    fail(Error(Errc::kUnavailable, "the target's answers make no sense"));
    return false;
  };
  if (answer.magic != kMagic || lane.idle() || answer.id != lane.first) return senseless();
  RailOp& op = *lane.at(lane.first);
  const bool granted = answer.status == Status::kOk;
  if (!granted && answer.status != Status::kDenied) return senseless();
  if (answer.length != (granted && op.is_get ? op.length_bytes : 0)) return senseless();
  // A request that is answered before it has gone out was not read, and its bytes are still needed.
  if (lane.out.size() == lane.next - lane.first) return senseless();
  if (answer.length > 0) {
    lane.in.expect(op.bytes, answer.length);
    return true;
  }
  end_first(lane, granted ? Errc::kOk : Errc::kPermissionDenied, ended);
  return true;
}

void TcpRail::end_first(Lane& lane, Errc outcome, std::vector<RailOp*>& ended) {
  if (!lane.kept.empty()) lane.kept.erase(lane.first);
  RailOp* const op = lane.at(lane.first++);
  lane.bytes -= op->length_bytes;
  op->outcome = outcome;
  ended.push_back(op);
}

void TcpRail::give_back(RailOp& op) {
  for (Lane& lane : lanes_) {
    for (std::uint64_t id = lane.first; id != lane.next; ++id) {
      if (lane.at(id) != &op) continue;
      const std::uint64_t sent = lane.next - lane.first - lane.out.size();  // wholly
      if (op.is_get && id == lane.first) lane.in.drop_rest();
      if (!op.is_get && id - lane.first >= sent) {
        auto& frame = lane.out.at(id - lane.first - sent);
        auto& kept = lane.kept[id];
        kept.assign(frame.data, frame.data + frame.length);
        frame.data = kept.data();
      }
      op.bytes = nullptr;
      return;
    }
  }
}

void TcpRail::fail(const Error& why) {
  failure_ = why.at(spec_.address);
  state_ = State::kFailed;
}

void TcpRail::close() {
  if (state_ == State::kClosed || state_ == State::kClosing) return;
  state_ = State::kClosing;
  for (Lane& lane : lanes_) {
    if (lane.stream) lane.stream->abort();
  }
}

}  // namespace tcp

Result<std::unique_ptr<Transport>> make_tcp_transport(const TcpOptions& options,
                                                      const Clock& clock) {
  const bool sane = options.depth_ops_max > 0 && options.connections > 0 &&
                    options.connections <= TcpOptions::kConnectionsMax;
  if (!sane) return Error(Errc::kInvalidArgument, "a tcp option is zero or too large");
  std::optional<net::SocketAddress> source;
  if (!options.source_address.empty()) {
    auto address = net::socket_address(options.source_address, 0);
    if (!address) return address.error();
    source = *address;
  }
  return std::unique_ptr<Transport>(
      std::make_unique<Initiator>(std::make_unique<tcp::TcpDriver>(options, source, clock),
                                  InitiatorOptions{.depth_ops_max = options.depth_ops_max}, clock));
}

}  // namespace ho::transport
