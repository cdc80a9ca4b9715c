#include "common/transport/ofi/lanes.hpp"

#include <algorithm>
#include <utility>

#include "common/base/units.hpp"

namespace ho::transport {
namespace {

constexpr std::uint32_t kSmallLane = 0;
/// Of large operations beside small ones: 0.4 ms of one core's TCP.
constexpr std::uint64_t kBesideSmallBytesMax = 2 * kMiB;
/// Small operations come one after the other: the next one is expected for so long.
constexpr Duration kSmallLinger = std::chrono::milliseconds(5);

}  // namespace

Result<Lanes> Lanes::create(const OfiAddress& address, const Endpoint::Reach& how,
                            const Options& options, const Clock& clock, TimePoint deadline) {
  HO_CHECK(options.large > 0 && options.large <= kLargeMax && options.flight_bytes_max > 0);
  Lanes made;
  made.options_ = options;
  for (std::uint32_t i = 0; i < 1 + options.large; ++i) {
    auto connection = Connection::create(address, how, clock, deadline);
    if (!connection) return connection.error();
    Lane lane;
    lane.connection = std::move(*connection);
    made.lanes_.push_back(std::move(lane));
  }
  return made;
}

void Lanes::close() {
  lanes_.clear();
  large_bytes_ = 0;
}

Result<void> Lanes::add_memory(LocalId id, std::span<std::byte> memory) {
  for (const Lane& lane : lanes_) {
    const auto added = lane.connection->add_memory(id, memory);
    if (added) continue;
    remove_memory(id);
    return added.error();
  }
  return {};
}

void Lanes::remove_memory(LocalId id) {
  for (const Lane& lane : lanes_) lane.connection->remove_memory(id);
}

bool Lanes::room_for_large() const {
  HO_CHECK(open());
  const bool small = !idle(kSmallLane) || now_ - last_small_ < kSmallLinger;
  const std::uint64_t most =
      small ? std::min(options_.flight_bytes_max, kBesideSmallBytesMax) : options_.flight_bytes_max;
  return large_bytes_ < most;
}

std::uint32_t Lanes::idlest_large() const {
  HO_CHECK(lanes_.size() > kSmallLane + 1);
  const auto idlest = std::min_element(
      lanes_.begin() + kSmallLane + 1, lanes_.end(),
      [](const Lane& left, const Lane& right) { return left.flight_bytes < right.flight_bytes; });
  return static_cast<std::uint32_t>(idlest - lanes_.begin());
}

std::int64_t Lanes::post(Piece& piece, const Transfer& transfer) {
  piece.lane = transfer.kind == Kind::kSmall ? kSmallLane : idlest_large();
  Lane& lane = lanes_[piece.lane];
  const std::int64_t returned = transfer.is_get ? lane.connection->read(piece, transfer.place)
                                                : lane.connection->write(piece, transfer.place);
  if (returned != 0) return returned;
  ++lane.pieces_in_flight;
  lane.flight_bytes += piece.length_bytes;
  if (transfer.kind == Kind::kLarge) large_bytes_ += piece.length_bytes;
  return 0;
}

void Lanes::ended(const Piece& piece) {
  Lane& lane = lanes_[piece.lane];
  HO_CHECK(lane.pieces_in_flight > 0 && lane.flight_bytes >= piece.length_bytes);
  --lane.pieces_in_flight;
  lane.flight_bytes -= piece.length_bytes;
  if (piece.lane != kSmallLane) large_bytes_ -= piece.length_bytes;
}

void Lanes::look(TimePoint now) {
  now_ = now;
  if (!idle(kSmallLane)) last_small_ = now;
}

}  // namespace ho::transport
