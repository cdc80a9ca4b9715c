#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "common/base/result.hpp"
#include "common/base/strong.hpp"
#include "common/transport/transport.hpp"

namespace ho::transport {

/// One region exposed by one Target. Never reused.
using ExposureId = Strong<struct ExposureIdTag, std::uint64_t>;

/// Memory to expose: one granted segment.
struct ExposeRequest {
  std::span<std::byte> memory;  ///< the daemon's own mapping, whole pages; outlives the exposure
  Rights rights = Rights::kReadWrite;
  int fd = -1;  ///< the memfd that `memory` maps from its beginning; only used during expose()
  SessionId session{};  ///< for whom; admitted
};

struct Exposure {
  ExposureId id;
  std::string key;  ///< RegionGrant::key for initiators
  /// The driver's own mapping that it serves the memory from, not faulted in yet: the caller may do
  /// that before it gives out the key, on any thread, until revoke(). Empty: none.
  std::span<std::byte> mapping;
};

/// Fixed properties of a target.
struct TargetCaps {
  std::string_view name;  ///< as Caps::name
  std::size_t rails = 1;  ///< addresses that transfers are spread over
};

/// The serving side of a driver, in the daemon: exposes memory to initiators and makes progress for
/// them. Threads: one owner thread (the daemon's data thread); nothing blocks except admit(),
/// expose() (registration) and, where a session has devices open, what ends them: fence(),
/// dismiss() and its last revoke().
/// Lifecycle: admit(), expose(), revoke(), dismiss() -> shut() -> revoke(), dismiss() ->
/// destructor.
class Target {
 public:
  virtual ~Target() = default;

  [[nodiscard]] virtual const TargetCaps& caps() const = 0;

  /// Lets a session in, once: memory that is exposed for it is served from now on to peers that
  /// show these credentials, where the driver checks them, and to no others. @return what
  /// PeerAddress::address must hold; kExhausted, kUnavailable, ...
  [[nodiscard]] virtual Result<std::string> admit(const Credentials& session) = 0;

  /// Ends the session's connections; nothing is exposed for it from now on. What still is goes with
  /// its revoke().
  virtual void dismiss(SessionId session) = 0;

  /// Ends the target's side of a rail: its connections of the session, up to the generation named.
  /// When it returns, nothing that was sent on them reaches memory any more.
  /// @return the session's address from now on, empty: the same. kNotFound: no such session or
  /// rail; kUnsupported: this driver cannot, and the session's peer is lost with the rail.
  [[nodiscard]] virtual Result<std::string> fence(SessionId session, const RailFence& rail) = 0;

  /// @return kNotFound: the session is not admitted, or not any more; kExhausted.
  [[nodiscard]] virtual Result<Exposure> expose(const ExposeRequest& request) = 0;

  /// After it returns no access by the exposure's key begins, and none touches its memory any more.
  /// Initiators see kPermissionDenied or kUnavailable. An access caught half-way may still be
  /// reported as done and have read zeros or written to nowhere: an owner who releases memory that
  /// it still accesses races with itself, one whose lease lapses must not trust what ends after it,
  /// and where the daemon ends, shut() comes first. @return kNotFound for an unknown exposure; kIo:
  /// accesses by its key may still come in. The exposure is gone all the same, and the caller must
  /// shut() the target before the memory is used for anything else.
  [[nodiscard]] virtual Result<void> revoke(ExposureId exposure) = 0;

  /// Ends every initiator's connection: none hears of another access as done. Afterwards admit()
  /// and expose() answer kUnavailable and progress() does nothing. Idempotent.
  virtual void shut() = 0;

  /// Serves initiators for a bounded time. @return events handled; 0: nothing to do.
  virtual std::size_t progress() = 0;

  /// Readable when progress() has work. -1: this driver never needs progress.
  [[nodiscard]] virtual int wait_descriptor() const = 0;

  /// Prepares to sleep on wait_descriptor(). @return false: work has come in meanwhile, call
  /// progress().
  [[nodiscard]] virtual bool arm() = 0;
};

}  // namespace ho::transport
