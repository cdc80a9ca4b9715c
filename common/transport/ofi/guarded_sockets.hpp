#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <memory>

#include "common/base/result.hpp"
#include "common/transport/ofi/wire.hpp"

namespace ho::transport {

/// While it lives, connections accepted at a target's address are read through a FrameGuard each; a
/// connection that is refused is shut, counted and logged (fabric_log.hpp). So is the oldest of 256
/// in the process that have asked for nothing, when one more comes; of an address that has as many
/// connections as it takes the oldest such of its own, else the one that comes. One that sends a
/// part of a hello is closed by libfabric, as one that sends none and ends is; that is not counted.
/// Outlives the endpoint that listens there: what libfabric forgets with it is closed then.
///
/// How: libfabric gives nothing out that lies between the socket and its provider. It calls
/// accept(), recv(), send(), sendmsg() and close() of libc by name, and a program that defines
/// these is asked first; so this file's are the ones of every program that it is linked into, and
/// pass through what is not guarded. It is linked into programs that have targets, never into the
/// client's library. io_uring (FI_TCP_IO_URING, off by default) would go past it, so a target
/// proves once that the way leads through here (see anything_guarded()).
///
/// Made and destroyed by any thread; the connections belong to the thread that drives libfabric.
class GuardedAddress {
 public:
  /// @return kUnsupported: not an address of TCP's.
  [[nodiscard]] static Result<std::unique_ptr<GuardedAddress>> create(const OfiAddress& address,
                                                                      std::size_t connections_max);
  GuardedAddress(const sockaddr_storage& at, std::size_t connections_max);
  GuardedAddress(const GuardedAddress&) = delete;
  GuardedAddress& operator=(const GuardedAddress&) = delete;
  ~GuardedAddress();
};

/// Whether bytes of an accepted connection have come through here in this process.
[[nodiscard]] bool anything_guarded();

}  // namespace ho::transport
