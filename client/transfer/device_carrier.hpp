#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "client/accel/device_streams.hpp"
#include "client/transfer/transfer.hpp"
#include "common/base/units.hpp"

namespace ho::client {

/// Pinned host memory by which bytes of other machines go to and from an accelerator.
struct BounceMemory {
  std::span<std::byte> memory;  ///< empty: all pool memory is this machine's
  LocalHandles local;           ///< what the drivers know it by
};

/// One piece of a transfer between an accelerator and pool memory.
struct DevicePiece {
  OpId op;
  Direction direction = Direction::kGet;
  DeviceStreams* streams = nullptr;
  std::byte* device = nullptr;
  std::uint64_t bytes = 0;
  const ArenaExtent* extent = nullptr;  ///< outlives the transfer
  std::uint64_t within_bytes = 0;       ///< in the extent
  DeviceOrder after;
  DoneWhen done_when = DoneWhen::kQueued;
};

/// How a piece ended. Exactly one for each that was submitted.
struct DevicePieceDone {
  OpId op;
  Errc code = Errc::kOk;
  DeviceOrder order;  ///< its end on the accelerator
};

/// Moves pieces between accelerators and pool memory: by one copy where the memory is this
/// machine's, else by way of pinned memory, of which the mover does the network's half.
///
///   this machine:    submit -> copy queued [-> ended] -> done
///   other, a get:    submit -> to be sent -> sent -> arrived -> copy queued [-> ended] -> done
///   other, a put:    submit -> copy queued -> ended -> to be sent -> sent -> visible there: done
///
/// Owner: the transfer thread. Allocates nothing after add().
class DeviceCarrier {
 public:
  /// Pieces submitted and not done.
  static constexpr std::uint32_t kPiecesMax = 16;
  /// Size of a bounce buffer, and the most bytes of a piece that goes through one.
  static constexpr std::uint64_t kBounceBytes = 4 * kMiB;
  /// For each direction, so that neither starves the other.
  static constexpr std::size_t kBouncesMax = 8;
  static constexpr std::uint64_t kBounceMemoryBytes = 2 * kBouncesMax * kBounceBytes;

  DeviceCarrier();

  /// An accelerator whose pieces may be submitted, until remove(): none of them is on its way then.
  void add(DeviceStreams* streams, const BounceMemory& bounce);
  void remove(DeviceStreams* streams);

  /// The largest piece for these bytes.
  [[nodiscard]] static std::uint64_t piece_bytes(const ArenaExtent& extent) {
    return extent.host != nullptr ? DeviceStreams::kCopyBytesMax : kBounceBytes;
  }
  /// Whether a piece of the transfer in this extent may be submitted now.
  [[nodiscard]] bool has_room(const Transfer& transfer, const ArenaExtent& extent) const;
  /// There is room. @return the accelerator's failure: nothing started.
  [[nodiscard]] Result<void> submit(const DevicePiece& piece);

  /// What the network has to do for a piece.
  struct Send {
    const DevicePiece* piece = nullptr;
    std::span<std::byte> memory;
    const LocalHandles* local = nullptr;
  };
  /// Calls `submit(send)` for what is to be sent, until it says kBusy. One that it refuses
  /// otherwise has failed.
  template <typename Submit>
  void send(const Submit& submit);
  /// What became of an operation of the network. @return false: it is none of a piece's here.
  [[nodiscard]] bool arrived(const Completion& completion);

  /// Ends pieces that were sent, with kDeadline: the network leaves their bounce memory alone.
  void end_late(std::span<const OpId> ops);

  /// Goes on with what waits for copies. @return how many pieces are done.
  std::size_t poll(std::span<DevicePieceDone> out);
  /// Looks what accelerators have done. @return whether they have done anything.
  bool poll_devices();
  /// The node's memory is about to be taken back; see DeviceStreams::lose().
  void lose(NodeIndex node);
  /// An accelerator still moves bytes, of pieces that are done or not.
  [[nodiscard]] bool moves() const;

 private:
  enum class Phase : std::uint8_t { kQueued, kStoring, kToSend, kSent, kArrived, kFailed };
  struct Device {
    DeviceStreams* streams = nullptr;
    BounceMemory bounce;
    std::array<std::array<bool, kBouncesMax>, 2> used{};  ///< by direction
  };
  struct Flight {
    DevicePiece piece;
    Phase phase = Phase::kQueued;
    Errc code = Errc::kOk;
    DeviceOrder order;
    bool told = false;  ///< reported as done; its bounce memory is still read
    std::size_t bounce = kNoBounce;
  };
  static constexpr std::size_t kNoBounce = kBouncesMax;

  [[nodiscard]] const Device& device_of(const DeviceStreams* streams) const;
  [[nodiscard]] Device& device_of(const DeviceStreams* streams);
  [[nodiscard]] std::span<std::byte> memory_of(const Flight& flight) const;
  [[nodiscard]] Result<void> queue_copy(Flight& flight);
  void advance(Flight& flight);
  [[nodiscard]] static bool is_done(const Flight& flight);
  void free_bounce(const Flight& flight);

  std::vector<Device> devices_;
  std::vector<Flight> flights_;
};

template <typename Submit>
void DeviceCarrier::send(const Submit& submit) {
  for (Flight& flight : flights_) {
    if (flight.phase != Phase::kToSend) continue;
    const Send what{&flight.piece, memory_of(flight),
                    &device_of(flight.piece.streams).bounce.local};
    const Result<void> ok = submit(what);
    if (!ok && ok.error().code() == Errc::kBusy) continue;
    flight.phase = ok ? Phase::kSent : Phase::kFailed;
    if (!ok) flight.code = ok.error().code();
  }
}

}  // namespace ho::client
