#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/check.hpp"
#include "common/base/clock.hpp"
#include "common/base/error.hpp"
#include "common/base/result.hpp"
#include "common/transport/transport.hpp"

// What a network driver implements; the Initiator does the rest for all of them.
namespace ho::transport {

/// Rails of one target at most.
inline constexpr std::size_t kRailsMax = 8;

/// Connections of a rail. Small operations have their own, so that none waits behind megabytes, and
/// so have the classes of traffic that nobody waits for. In the order in which they are posted.
enum class LaneKind : std::uint8_t { kSmall, kLarge, kBulk, kBackground };
inline constexpr std::size_t kLaneKinds = 4;
inline constexpr std::uint64_t kSmallBytesMax = 64 * 1024;

/// Local memory as a driver has registered it. Outlives every operation that uses it.
class LocalMemory {
 public:
  LocalMemory() = default;
  LocalMemory(const LocalMemory&) = delete;
  LocalMemory& operator=(const LocalMemory&) = delete;
  virtual ~LocalMemory() = default;
};

/// A peer's region as a driver reaches it. Outlives every operation on it.
class RemoteRegion {
 public:
  RemoteRegion(std::uint64_t length, Rights allowed) : length_bytes(length), rights(allowed) {}
  RemoteRegion(const RemoteRegion&) = delete;
  RemoteRegion& operator=(const RemoteRegion&) = delete;
  virtual ~RemoteRegion() = default;

  const std::uint64_t length_bytes;
  const Rights rights;
};

/// One get or put. The initiator's; lent to a rail from post() until progress() gives it back.
struct RailOp {
  std::byte* bytes = nullptr;  ///< written to by gets only; null: given back
  std::uint64_t length_bytes = 0;
  std::uint64_t offset_bytes = 0;  ///< in the region
  const LocalMemory* memory = nullptr;
  const RemoteRegion* region = nullptr;
  bool is_get = false;
  TrafficClass traffic = TrafficClass::kDeadline;
  std::uint32_t slot = 0;  ///< the initiator's number for it
  /// Set when it comes back. kOk; kPermissionDenied: the target refused it and the rail goes on;
  /// kUnavailable: the rail was lost, and a put may or may not have been carried out.
  Errc outcome = Errc::kOk;

  [[nodiscard]] LaneKind kind() const {
    if (traffic == TrafficClass::kBulk) return LaneKind::kBulk;
    if (traffic == TrafficClass::kBackground) return LaneKind::kBackground;
    return length_bytes <= kSmallBytesMax ? LaneKind::kSmall : LaneKind::kLarge;
  }
};

/// The connections to one address of one target, from connect() until they are closed. A rail that
/// is tried again is a new object with the next generation.
///
///   kConnecting --> kOpen --> kFailed        any --close()--> kClosing --> kClosed
///        +-------------------->+
///
/// Owner thread: the initiator's. Nothing blocks but add(). Destroyed in kClosed, or together with
/// its driver.
class Rail {
 public:
  enum class State : std::uint8_t { kConnecting, kOpen, kFailed, kClosing, kClosed };

  Rail() = default;
  Rail(const Rail&) = delete;
  Rail& operator=(const Rail&) = delete;
  virtual ~Rail() = default;

  [[nodiscard]] virtual State state() const = 0;
  /// Why it is kFailed. kUnavailable: nobody there, or lost; kPermissionDenied: the target does not
  /// take the session, or, of one that was open, its device has refused an access, which ends the
  /// connection; kInvalidArgument: not our kind of target.
  [[nodiscard]] virtual Error failure() const = 0;

  enum class Trial : std::uint8_t { kNo, kYes };
  /// Makes a region usable on an open rail. Trial::kYes: where a refused key would cost the rail,
  /// finds out first whether the target takes it. May block until `deadline`.
  /// @return kPermissionDenied; kUnavailable, kDeadline: the rail does not answer.
  [[nodiscard]] virtual Result<void> add(RemoteRegion& region, Trial trial, TimePoint deadline) = 0;

  /// Takes one operation on an open rail. @return false: full, progress() and retry.
  [[nodiscard]] virtual bool post(RailOp& op) = 0;
  /// Connects, moves bytes, closes. Operations that ended are appended to `ended`, which has room.
  /// @return whether anything moved that shows the peer to be there: bytes that the kernel or
  /// device only took do not.
  virtual bool progress(std::vector<RailOp*>& ended) = 0;
  /// The operation's bytes are the caller's again: a get's are thrown away when they come, what a
  /// put has not sent yet is copied. It comes back like any other. Only with Caps::gives_back.
  virtual void give_back(RailOp& op);
  /// Ends it by force. Every operation comes back; in kClosed none is left, and neither kernel nor
  /// device touches local bytes any more.
  virtual void close() = 0;
};

inline void Rail::give_back(RailOp& /*op*/) { HO_CHECK(false); }

/// Common to all rails of one initiator. Owner thread: the initiator's.
class RailDriver {
 public:
  RailDriver() = default;
  RailDriver(const RailDriver&) = delete;
  RailDriver& operator=(const RailDriver&) = delete;
  virtual ~RailDriver() = default;

  [[nodiscard]] virtual const Caps& caps() const = 0;
  /// Takes a target's address apart: one text a rail, 1 .. kRailsMax.
  /// @return kInvalidArgument: not an address of this driver.
  [[nodiscard]] virtual Result<std::vector<std::string>> rails_of(const std::string& address) = 0;

  struct RailSpec {
    std::string address;           ///< one of rails_of()
    std::uint32_t number = 0;      ///< of the rail, from 0
    std::uint32_t generation = 1;  ///< grows with every attempt
    Credentials session;
    /// The first time of all: the caller waits anyway. Else connect() must not block.
    bool may_block = false;
  };
  /// Begins to connect. @return kUnavailable, kUnsupported, kExhausted: it cannot even begin.
  [[nodiscard]] virtual Result<std::unique_ptr<Rail>> connect(const RailSpec& spec) = 0;

  [[nodiscard]] virtual Result<std::unique_ptr<LocalMemory>> register_memory(
      std::span<std::byte> memory) = 0;
  /// Reads a grant's key. @return kInvalidArgument: not a key of this driver, or not for `rails`.
  [[nodiscard]] virtual Result<std::unique_ptr<RemoteRegion>> open_region(const RegionGrant& grant,
                                                                          std::size_t rails) = 0;
  /// Once in each poll(), before the rails'. For what rails share.
  virtual void progress() {}
};

}  // namespace ho::transport
