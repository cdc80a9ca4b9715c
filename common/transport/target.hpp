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

/// For whom a region is exposed: a session of the daemon's. Never reused.
using TenantId = Strong<struct TenantIdTag, std::uint64_t>;
inline constexpr TenantId kNobody{0};

/// Memory to expose: one granted segment.
struct ExposeRequest {
  std::span<std::byte> memory;  ///< the daemon's own mapping, whole pages; outlives the exposure
  Rights rights = Rights::kReadWrite;
  int fd = -1;  ///< the memfd that `memory` maps from its beginning; only used during expose()
  TenantId tenant = kNobody;  ///< for nobody, or for one that was admitted
};

struct Exposure {
  ExposureId id;
  std::string key;  ///< RegionGrant::key for initiators; unguessable where the driver checks keys
  /// What the driver serves it from where that is a mapping of its own, not faulted in yet: whoever
  /// exposes may do that before the key is given out, on any thread, until revoke(). Empty: none.
  std::span<std::byte> mapping;
};

/// The serving side of a driver, in the daemon: exposes memory to initiators and makes progress for
/// them. Threads: one owner thread (the daemon's data thread); nothing blocks except expose()
/// (registration) and admit().
/// Lifecycle: admit(), expose(), revoke(), dismiss() -> shut() -> revoke(), dismiss() ->
/// destructor.
class Target {
 public:
  virtual ~Target() = default;

  /// The driver's name as in Caps::name.
  [[nodiscard]] virtual std::string_view name() const = 0;

  /// What PeerAddress::address must hold to reach this target, and what it exposes for nobody.
  [[nodiscard]] virtual const std::string& address() const = 0;

  /// Makes a place of the tenant's own: what is exposed for it from now on is reached there and
  /// nowhere else, and nothing else is reached there, whatever key an initiator may have got hold
  /// of. Once a tenant. @return what PeerAddress::address must hold then; empty: this driver has no
  /// such places, and all is reached at address(); kExhausted, kUnavailable, ...
  [[nodiscard]] virtual Result<std::string> admit(TenantId tenant) = 0;

  /// Ends the tenant's place and its connections, once nothing is exposed there any more; nothing
  /// is exposed for it from now on.
  virtual void dismiss(TenantId tenant) = 0;

  /// @return kNotFound: the driver has places of tenants' own, and this tenant has none, not yet or
  /// not any more. What was meant for one tenant is never exposed where others are served.
  [[nodiscard]] virtual Result<Exposure> expose(const ExposeRequest& request) = 0;

  /// After it returns no access by the exposure's key begins, and none touches its memory any more.
  /// Initiators see kPermissionDenied or kUnavailable. An access caught half-way may still be told
  /// as done and have read zeros or written to nowhere: an owner who releases memory that it still
  /// accesses races with itself, one whose lease lapses must not trust what ends after it, and
  /// where the daemon ends, shut() comes first. @return kNotFound for an unknown exposure; kIo:
  /// accesses by its key may still come in. The exposure is gone all the same, and the caller must
  /// shut() the target before the memory is used for anything else.
  [[nodiscard]] virtual Result<void> revoke(ExposureId exposure) = 0;

  /// Ends every initiator's connection: none is told of another access as done. Afterwards admit()
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
