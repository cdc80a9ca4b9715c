#include "client/transfer/device_carrier.hpp"

#include <algorithm>
#include <utility>

#include "common/base/check.hpp"

namespace ho::client {
namespace {

std::size_t index(Direction direction) { return static_cast<std::size_t>(direction); }

Lane lane_of(Direction direction) { return direction == Direction::kGet ? Lane::kIn : Lane::kOut; }

}  // namespace

DeviceCarrier::DeviceCarrier() { flights_.reserve(kPiecesMax); }

void DeviceCarrier::add(DeviceStreams* streams, const BounceMemory& bounce) {
  HO_CHECK(bounce.memory.empty() || bounce.memory.size() == kBounceMemoryBytes);
  Device device;
  device.streams = streams;
  device.bounce = bounce;
  devices_.push_back(device);
  // A get's bounce memory is read until its copy has ended, which is after the piece is done.
  flights_.reserve(kPiecesMax + kBouncesMax * devices_.size());
}

void DeviceCarrier::remove(DeviceStreams* streams) {
  // All remaining flights were reported: their copies have ended, or never will.
  std::erase_if(flights_, [&](const Flight& flight) {
    HO_CHECK(flight.piece.streams != streams || flight.told);
    return flight.piece.streams == streams;
  });
  std::erase_if(devices_, [&](const Device& device) { return device.streams == streams; });
}

const DeviceCarrier::Device& DeviceCarrier::device_of(const DeviceStreams* streams) const {
  const auto at = std::find_if(devices_.begin(), devices_.end(),
                               [&](const Device& device) { return device.streams == streams; });
  HO_CHECK(at != devices_.end());
  return *at;
}

DeviceCarrier::Device& DeviceCarrier::device_of(const DeviceStreams* streams) {
  return const_cast<Device&>(std::as_const(*this).device_of(streams));
}

std::span<std::byte> DeviceCarrier::memory_of(const Flight& flight) const {
  const std::size_t place = index(flight.piece.direction) * kBouncesMax + flight.bounce;
  return device_of(flight.piece.streams)
      .bounce.memory.subspan(place * kBounceBytes, flight.piece.bytes);
}

bool DeviceCarrier::has_room(const Transfer& transfer, const ArenaExtent& extent) const {
  if (!transfer.streams->has_room(lane_of(transfer.direction))) return false;
  if (extent.host != nullptr) return true;
  const auto& used = device_of(transfer.streams).used[index(transfer.direction)];
  return std::find(used.begin(), used.end(), false) != used.end();
}

Result<void> DeviceCarrier::submit(const DevicePiece& piece) {
  Flight flight;
  flight.piece = piece;
  if (piece.extent->host == nullptr) {
    Device& device = device_of(piece.streams);
    HO_CHECK(!device.bounce.memory.empty());
    auto& used = device.used[index(piece.direction)];
    const auto place = std::find(used.begin(), used.end(), false);
    HO_CHECK(place != used.end() && piece.bytes <= kBounceBytes);
    flight.bounce = static_cast<std::size_t>(place - used.begin());
    if (piece.direction == Direction::kGet) {
      flight.phase = Phase::kToSend;
    } else {
      if (auto ok = queue_copy(flight); !ok) return ok;
      flight.phase = Phase::kStoring;
    }
    *place = true;
  } else if (auto ok = queue_copy(flight); !ok) {
    return ok;
  }
  HO_CHECK(flights_.size() < flights_.capacity());
  flights_.push_back(flight);
  return {};
}

Result<void> DeviceCarrier::queue_copy(Flight& flight) {
  const DevicePiece& piece = flight.piece;
  AccelCopy copy;
  copy.lane = lane_of(piece.direction);
  copy.device = piece.device;
  copy.host = flight.bounce == kNoBounce ? piece.extent->host + piece.within_bytes
                                         : memory_of(flight).data();
  copy.bytes = piece.bytes;
  const auto number = piece.streams->copy(copy, piece.after);
  if (!number) return number.error();
  flight.order[copy.lane] = *number;
  flight.phase = Phase::kQueued;
  return {};
}

bool DeviceCarrier::arrived(const Completion& completion) {
  const auto at = std::find_if(flights_.begin(), flights_.end(), [&](const Flight& flight) {
    return flight.phase == Phase::kSent && flight.piece.op == completion.op;
  });
  if (at == flights_.end()) return false;
  at->phase = completion.code == Errc::kOk ? Phase::kArrived : Phase::kFailed;
  at->code = completion.code;
  return true;
}

void DeviceCarrier::end_late(std::span<const OpId> ops) {
  for (Flight& flight : flights_) {
    const bool sent = flight.phase == Phase::kSent;
    if (!sent || std::find(ops.begin(), ops.end(), flight.piece.op) == ops.end()) continue;
    flight.phase = Phase::kFailed;
    flight.code = Errc::kDeadline;
  }
}

void DeviceCarrier::advance(Flight& flight) {
  DeviceStreams& streams = *flight.piece.streams;
  const bool waits_for_device = flight.phase == Phase::kQueued || flight.phase == Phase::kStoring;
  if (waits_for_device && !flight.told && streams.failure()) {
    flight.phase = Phase::kFailed;
    flight.code = Errc::kIo;
  }
  if (flight.phase == Phase::kStoring && streams.ended(flight.order)) flight.phase = Phase::kToSend;
  const bool lands = flight.phase == Phase::kArrived && flight.piece.direction == Direction::kGet;
  if (lands && streams.has_room(Lane::kIn)) {
    const auto ok = queue_copy(flight);
    if (ok) return;
    flight.phase = Phase::kFailed;
    flight.code = Errc::kIo;
  }
}

/// A put that was sent is done when it is visible there; what goes to the device when it is queued
/// or has ended.
bool DeviceCarrier::is_done(const Flight& flight) {
  switch (flight.phase) {
    case Phase::kFailed: return true;
    case Phase::kArrived: return flight.piece.direction == Direction::kPut;
    case Phase::kQueued:
      return flight.piece.done_when == DoneWhen::kQueued ||
             flight.piece.streams->ended(flight.order);
    case Phase::kStoring:
    case Phase::kToSend:
    case Phase::kSent: break;
  }
  return false;
}

void DeviceCarrier::free_bounce(const Flight& flight) {
  if (flight.bounce == kNoBounce) return;
  device_of(flight.piece.streams).used[index(flight.piece.direction)][flight.bounce] = false;
}

std::size_t DeviceCarrier::poll(std::span<DevicePieceDone> out) {
  std::size_t count = 0;
  std::erase_if(flights_, [&](Flight& flight) {
    advance(flight);
    if (!flight.told) {
      if (!is_done(flight) || count == out.size()) return false;
      out[count++] = {flight.piece.op, flight.code, flight.order};
      flight.told = true;
    }
    const bool in_use = flight.bounce != kNoBounce && flight.phase == Phase::kQueued &&
                        !flight.piece.streams->ended(flight.order) &&
                        !flight.piece.streams->failure();
    if (in_use) return false;
    free_bounce(flight);
    return true;
  });
  return count;
}

bool DeviceCarrier::poll_devices() {
  bool any = false;
  for (const Device& device : devices_) any = device.streams->poll() || any;
  return any;
}

void DeviceCarrier::lose(NodeIndex node) {
  for (const Device& device : devices_) device.streams->lose(node.value());
}

bool DeviceCarrier::moves() const {
  return std::any_of(devices_.begin(), devices_.end(),
                     [](const Device& device) { return !device.streams->idle(); });
}

}  // namespace ho::client
