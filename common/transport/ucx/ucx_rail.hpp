#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.hpp"
#include "common/transport/striping/rail.hpp"
#include "common/transport/striping/request.hpp"
#include "common/transport/ucx/connection.hpp"
#include "common/transport/ucx/context.hpp"
#include "common/transport/ucx/loader/ucx_module.hpp"
#include "common/transport/ucx/rail_try.hpp"
#include "common/transport/ucx/wire.hpp"

namespace ho::transport {

/// Local memory, registered with each of our devices.
class UcxLocalMemory final : public LocalMemory {
 public:
  explicit UcxLocalMemory(std::vector<UcxMemory> registered) : by_device(std::move(registered)) {}
  const std::vector<UcxMemory> by_device;
};

/// A region's key, and as each open rail has unpacked it.
class UcxRegion final : public RemoteRegion {
 public:
  UcxRegion(UcxKey of, std::uint64_t length, Rights allowed)
      : RemoteRegion(length, allowed), key(std::move(of)), by_rail(key.packed.size()) {}
  const UcxKey key;
  std::vector<UcxKeys> by_rail;
};

/// What the rails of one initiator share: a context for each of our devices.
class UcxDriver final : public RailDriver {
 public:
  UcxDriver(const UcxOptions& options, UcxContexts contexts, const Clock& clock);
  /// Registers the driver's own byte, for trials.
  [[nodiscard]] Result<void> prepare();

  [[nodiscard]] const Caps& caps() const override { return caps_; }
  [[nodiscard]] Result<std::vector<std::string>> rails_of(const std::string& address) override;
  /// May overrun its caller's deadline by 1 s if the kernel cannot resolve the address, and by some
  /// seconds more where nothing answers: what was begun is ended first.
  [[nodiscard]] Result<std::unique_ptr<Rail>> connect(const RailSpec& spec) override;
  [[nodiscard]] Result<std::unique_ptr<LocalMemory>> register_memory(
      std::span<std::byte> memory) override;
  [[nodiscard]] Result<std::unique_ptr<RemoteRegion>> open_region(const RegionGrant& grant,
                                                                  std::size_t rails) override;
  void progress() override;

  /// The device that a rail begins with: the one that reached it last, or the next one after an
  /// attempt that got no answer; at first by number.
  [[nodiscard]] std::size_t first_device(std::uint32_t rail) const {
    return device_of_[rail].value_or(rail % contexts_.size());
  }
  void begin_with(std::uint32_t rail, std::size_t device) { device_of_[rail] = device; }
  [[nodiscard]] const Clock& clock() const { return clock_; }
  [[nodiscard]] const UcxContexts& contexts() const { return contexts_; }
  /// One byte for trials to read into, and its registration with a device.
  [[nodiscard]] std::byte* scratch() { return scratch_; }
  [[nodiscard]] ucp_mem_h scratch_memory(std::size_t device) const {
    return scratch_memory_[device].handle();
  }

 private:
  const Clock& clock_;
  Caps caps_;
  UcxContexts contexts_;
  alignas(64) std::byte scratch_[64] = {};
  std::vector<UcxMemory> scratch_memory_;  ///< by device
  std::array<std::optional<std::size_t>, kRailsMax> device_of_;
};

/// The connection to one worker of a target, over one of our devices: a device that gets no answer
/// gives way to the next, since networks may not be connected to each other.
/// Operations are posted in pieces, so that it shows whether something moves.
class UcxRail final : public Rail {
 public:
  UcxRail(UcxDriver& driver, const RailDriver::RailSpec& spec);

  /// Begins to connect over the first device.
  void begin();
  [[nodiscard]] State state() const override { return state_; }
  [[nodiscard]] Error failure() const override { return *failure_; }
  [[nodiscard]] Result<void> add(RemoteRegion& region, Trial trial, TimePoint deadline) override;
  [[nodiscard]] bool post(RailOp& op) override;
  bool progress(std::vector<RailOp*>& ended) override;
  void close() override;

 private:
  /// An operation that the rail has.
  struct Flight {
    RailOp* op = nullptr;  ///< null: free
    std::uint64_t posted_bytes = 0;
    std::uint64_t done_bytes = 0;
  };
  struct Lane {
    explicit Lane(std::size_t ops_max) : waiting(ops_max) {}
    SlotRing waiting;        ///< flights with pieces still to post
    std::size_t ops = 0;     ///< all flights
    std::size_t pieces = 0;  ///< in flight
  };

  [[nodiscard]] std::size_t device() const {
    return (first_device_ + given_up_) % driver_.contexts().size();
  }
  [[nodiscard]] Result<void> begin_on_device();
  void give_up_device(const Error& why);
  void try_next_device();
  void advance_connecting();
  void pump(LaneKind kind);
  bool take_pieces(std::vector<RailOp*>& ended);
  void end(std::uint32_t flight, Errc outcome, std::vector<RailOp*>& ended);
  [[nodiscard]] Lane& lane(LaneKind kind) { return lanes_[static_cast<std::size_t>(kind)]; }

  UcxDriver& driver_;
  const RailDriver::RailSpec spec_;
  State state_ = State::kConnecting;
  std::optional<Error> failure_;  ///< while it connects: the first device's
  const std::size_t first_device_;
  std::size_t given_up_ = 0;  ///< devices that got no answer
  bool gives_up_ = false;     ///< this one, when nothing of its attempt is left
  TimePoint device_end_;      ///< until when this one may connect if there is another
  std::vector<Flight> flights_;
  std::vector<std::uint32_t> free_flights_;
  std::array<Lane, kUcxLanes> lanes_;
  std::vector<UcxPiece> pieces_;
  std::vector<UcxPiece*> free_pieces_;
  std::unique_ptr<UcxRailTry> probe_;
  /// Last member, so destroyed first: while it closes, pieces still come back.
  std::unique_ptr<UcxConnection> connection_;
};

}  // namespace ho::transport
