#include "common/transport/ucx/ucx_rail.hpp"

#include <algorithm>
#include <chrono>

#include "common/base/check.hpp"
#include "common/base/units.hpp"
#include "common/transport/striping/initiator.hpp"
#include "common/transport/ucx/ucx_transport.hpp"

namespace ho::transport {
namespace {

constexpr std::uint64_t kOpBytesMax = std::uint64_t{1} << 40U;
constexpr std::uint64_t kPieceBytes = kMiB;
/// Pieces in flight on one endpoint. A piece takes at most two of the 256 places in the device's
/// queue: UCX copies pieces up to 16 KiB in parts of 8 KiB, larger ones not at all (settings.cpp).
/// If the queue were full, UCX could not cancel anything before the device has tried all of it,
/// which takes a second or more.
constexpr std::size_t kLanePiecesMax = 64;
constexpr std::size_t kLaneOpsMax = 64;
/// How long one of several devices may go without an answer before the next is tried. Usual:
/// milliseconds, or up to a second if devices are emulated.
constexpr Duration kDeviceTime = std::chrono::milliseconds(1200);

constexpr std::array kLanes = {LaneKind::kSmall, LaneKind::kLarge};
static_assert(kLanes.size() == kUcxLanes);

}  // namespace

UcxDriver::UcxDriver(const UcxOptions& options, UcxContexts contexts, const Clock& clock)
    : clock_(clock), contexts_(std::move(contexts)) {
  caps_.name = "ucx";
  caps_.op_bytes_max = kOpBytesMax;
  caps_.depth_ops_max = options.depth_ops_max;
  caps_.needs_peer_progress = options.devices.allow_emulation;
  caps_.patient = true;
}

Result<void> UcxDriver::prepare() {
  auto memory = register_with_all(contexts_, scratch_);
  if (!memory) return memory.error();
  scratch_memory_ = std::move(*memory);
  return {};
}

Result<std::vector<std::string>> UcxDriver::rails_of(const std::string& address) {
  return decode_ucx_address(address);
}

Result<std::unique_ptr<Rail>> UcxDriver::connect(const RailSpec& spec) {
  auto rail = std::make_unique<UcxRail>(*this, spec);
  rail->begin();
  return std::unique_ptr<Rail>(std::move(rail));
}

Result<std::unique_ptr<LocalMemory>> UcxDriver::register_memory(std::span<std::byte> memory) {
  auto registered = register_with_all(contexts_, memory);
  if (!registered) return registered.error();
  return std::unique_ptr<LocalMemory>(std::make_unique<UcxLocalMemory>(std::move(*registered)));
}

Result<std::unique_ptr<RemoteRegion>> UcxDriver::open_region(const RegionGrant& grant,
                                                             std::size_t rails) {
  auto key = decode_ucx_key(grant.key);
  if (!key) return key.error();
  if (key->length_bytes < grant.length_bytes) {
    return Error(Errc::kInvalidArgument, "the grant's length is not its key's");
  }
  if (key->packed.size() != rails) {
    return Error(Errc::kInvalidArgument,
                 "the grant's key is not for as many devices as the peer's");
  }
  const Rights rights = grant.rights == Rights::kRead ? Rights::kRead : key->rights;
  return std::unique_ptr<RemoteRegion>(
      std::make_unique<UcxRegion>(std::move(*key), grant.length_bytes, rights));
}

void UcxDriver::progress() {
  for (const auto& context : contexts_) context->progress_all();
}

UcxRail::UcxRail(UcxDriver& driver, const RailDriver::RailSpec& spec)
    : driver_(driver),
      spec_(spec),
      first_device_(driver.first_device(spec.number)),
      flights_(kUcxLanes * kLaneOpsMax),
      lanes_{Lane(kLaneOpsMax), Lane(kLaneOpsMax)},
      pieces_(kUcxLanes * kLanePiecesMax) {
  for (std::uint32_t i = 0; i < flights_.size(); ++i) free_flights_.push_back(i);
  for (UcxPiece& piece : pieces_) free_pieces_.push_back(&piece);
}

void UcxRail::begin() {
  if (const auto begun = begin_on_device(); !begun) give_up_device(begun.error());
}

Result<void> UcxRail::begin_on_device() {
  UcxContext& context = *driver_.contexts()[device()];
  device_end_ = driver_.clock().now() + kDeviceTime;
  // A wire-up over an interface that is down can end the process (UCX.md).
  if (!context.up()) return Error(Errc::kUnavailable, "its port is down");
  if (spec_.may_block && given_up_ == 0) {
    auto connection = UcxConnection::begin(context, spec_.address, pieces_.size());
    if (!connection) return connection.error();
    connection_ = std::move(*connection);
    return {};
  }
  auto probe = UcxRailTry::begin(context.settings(), spec_.address);
  if (!probe) return probe.error();
  probe_ = std::move(*probe);
  return {};
}

/// Gives way to the next device, once nothing of this attempt is left.
void UcxRail::give_up_device(const Error& why) {
  if (!failure_) failure_ = why.at(driver_.contexts()[device()]->device());
  gives_up_ = true;
  if (probe_ != nullptr) probe_->stop();
  if (connection_ != nullptr) connection_->start_close();
}

void UcxRail::try_next_device() {
  if (probe_ != nullptr && !probe_->done()) return;
  if (connection_ != nullptr && !connection_->closed()) return;
  probe_.reset();
  connection_.reset();
  gives_up_ = false;
  if (++given_up_ == driver_.contexts().size()) {
    state_ = State::kFailed;
    return;
  }
  begin();
}

void UcxRail::advance_connecting() {
  if (gives_up_) return try_next_device();
  if (probe_ != nullptr && probe_->done()) {
    const Result<void> there = std::exchange(probe_, nullptr)->outcome();
    if (!there) return give_up_device(there.error());
    auto connection =
        UcxConnection::begin(*driver_.contexts()[device()], spec_.address, pieces_.size());
    if (!connection) return give_up_device(connection.error());
    connection_ = std::move(*connection);
    device_end_ = driver_.clock().now() + kDeviceTime;
  }
  if (connection_ != nullptr && connection_->wired()) {
    const auto made = connection_->outcome();
    if (!made) return give_up_device(made.error());
    failure_.reset();
    driver_.begin_with(spec_.number, device());
    state_ = State::kOpen;
    return;
  }
  const bool more = given_up_ + 1 < driver_.contexts().size();
  if (more && probe_ == nullptr && driver_.clock().now() >= device_end_) {
    give_up_device(Error(Errc::kDeadline, "no answer from the target"));
  }
}

Result<void> UcxRail::add(RemoteRegion& region, Trial trial, TimePoint deadline) {
  auto& mine = static_cast<UcxRegion&>(region);
  const std::string& packed = mine.key.packed[spec_.number];
  // Before the trial: a rail that does not answer it stays open until silence gives it up.
  auto keys = connection_->unpack(packed);
  if (!keys) return keys.error();
  mine.by_rail[spec_.number] = std::move(*keys);
  if (trial == Trial::kNo) return {};
  return connection_->try_key(
      {packed, mine.key.base, driver_.scratch(), driver_.scratch_memory(device())}, driver_.clock(),
      deadline);
}

bool UcxRail::post(RailOp& op) {
  HO_CHECK(state_ == State::kOpen);
  const LaneKind kind = op.kind();
  Lane& to = lane(kind);
  if (to.ops == kLaneOpsMax) return false;
  const std::uint32_t flight = free_flights_.back();
  free_flights_.pop_back();
  flights_[flight] = Flight{&op};
  to.waiting.push(flight);
  ++to.ops;
  pump(kind);
  return true;
}

/// Posts pieces as long as there is room for them.
void UcxRail::pump(LaneKind kind) {
  Lane& to = lane(kind);
  while (!to.waiting.empty() && to.pieces < kLanePiecesMax) {
    const std::uint32_t index = to.waiting.front();
    Flight& flight = flights_[index];
    const RailOp& op = *flight.op;
    const auto& memory = static_cast<const UcxLocalMemory&>(*op.memory);
    const auto& region = static_cast<const UcxRegion&>(*op.region);
    UcxPiece& piece = *free_pieces_.back();
    free_pieces_.pop_back();
    ++to.pieces;
    piece.flight = index;
    const std::uint64_t at = flight.posted_bytes;
    piece.length_bytes = static_cast<std::uint32_t>(std::min(kPieceBytes, op.length_bytes - at));
    flight.posted_bytes += piece.length_bytes;
    if (flight.posted_bytes == op.length_bytes) to.waiting.pop();
    const UcxConnection::Place place{
        op.bytes + at, memory.by_device[device()].handle(), region.key.base + op.offset_bytes + at,
        region.by_rail[spec_.number][static_cast<std::size_t>(kind)].get()};
    HO_CHECK(place.key != nullptr);
    op.is_get ? connection_->get(kind, piece, place) : connection_->put(kind, piece, place);
  }
}

/// Gives pieces that came back to their operations. @return whether the target has answered.
bool UcxRail::take_pieces(std::vector<RailOp*>& ended) {
  for (UcxPiece* const piece : connection_->ended()) {
    Flight& flight = flights_[piece->flight];
    HO_CHECK(flight.op != nullptr);
    Lane& of = lane(flight.op->kind());
    HO_CHECK(of.pieces > 0);
    --of.pieces;
    free_pieces_.push_back(piece);
    if (piece->status != UCS_OK) continue;  // the connection is over, and says why
    flight.done_bytes += piece->length_bytes;
    if (flight.done_bytes == flight.op->length_bytes) end(piece->flight, Errc::kOk, ended);
  }
  connection_->clear_ended();
  return connection_->answered();
}

void UcxRail::end(std::uint32_t flight, Errc outcome, std::vector<RailOp*>& ended) {
  RailOp* const op = std::exchange(flights_[flight].op, nullptr);
  op->outcome = outcome;
  --lane(op->kind()).ops;
  ended.push_back(op);
  free_flights_.push_back(flight);
}

bool UcxRail::progress(std::vector<RailOp*>& ended) {
  switch (state_) {
    case State::kConnecting: advance_connecting(); return state_ != State::kConnecting;
    case State::kOpen: break;
    case State::kClosing:
      if (probe_ != nullptr && !probe_->done()) return false;  // it would be waited for
      if (connection_ != nullptr) {
        const bool closed = connection_->closed();
        (void)take_pieces(ended);
        if (!closed) return false;
        for (std::uint32_t i = 0; i < flights_.size(); ++i) {
          if (flights_[i].op != nullptr) end(i, Errc::kUnavailable, ended);
        }
      }
      state_ = State::kClosed;
      return true;
    case State::kFailed:
    case State::kClosed: return false;
  }
  const bool answered = take_pieces(ended);
  failure_ = connection_->failure();
  if (failure_) {
    state_ = State::kFailed;
    return answered;
  }
  for (const LaneKind kind : kLanes) pump(kind);
  connection_->flush();
  return answered;
}

void UcxRail::close() {
  if (state_ == State::kClosed || state_ == State::kClosing) return;
  // It got no answer in time: the next attempt begins elsewhere.
  if (state_ == State::kConnecting) {
    driver_.begin_with(spec_.number, (device() + 1) % driver_.contexts().size());
  }
  state_ = State::kClosing;
  if (probe_ != nullptr) probe_->stop();
  if (connection_ != nullptr) connection_->start_close();
}

Result<std::unique_ptr<Transport>> open_ucx_transport(const UcxOptions& options,
                                                      const Clock& clock) {
  if (options.depth_ops_max == 0) {
    return Error(Errc::kInvalidArgument, "a ucx option is zero");
  }
  auto contexts = UcxContext::create_all(options.devices, UcxSide::kInitiator);
  if (!contexts) return contexts.error();
  auto driver = std::make_unique<UcxDriver>(options, std::move(*contexts), clock);
  if (const auto prepared = driver->prepare(); !prepared) return prepared.error();
  return std::unique_ptr<Transport>(std::make_unique<Initiator>(
      std::move(driver), InitiatorOptions{.depth_ops_max = options.depth_ops_max}, clock));
}

}  // namespace ho::transport
