#pragma once

#include <sys/socket.h>

#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/base/unique_fd.hpp"
#include "common/transport/ofi/wire.hpp"

namespace ho::transport {

// What libfabric does not do for us on its TCP sockets, and does not give them out for.

/// Finds out whether anybody listens at a target's addresses, by TCP connections that are closed at
/// once: libfabric itself tells a dead target from a slow one by the deadline only. All are tried
/// at the same time. Once one has answered, the others get kOtherRailsTime more.
/// @return for each: kUnavailable: refused or unreachable. kDeadline: no answer. Success where the
/// address is none of TCP's.
[[nodiscard]] std::vector<Result<void>> knock(std::span<const OfiAddress> addresses,
                                              const Clock& clock, TimePoint deadline);

/// Rails of one target answer within milliseconds of each other, or one of them is gone; a lost
/// first packet is repeated by TCP after 1 s.
inline constexpr Duration kOtherRailsTime = std::chrono::milliseconds(1200);

/// The address as the kernel knows it; nothing where it is none of IP's.
[[nodiscard]] std::optional<sockaddr_storage> socket_address(const OfiAddress& address);
/// Of the same family, address and port.
[[nodiscard]] bool same_place(const sockaddr_storage& left, const sockaddr_storage& right);

/// "10.0.0.1:4242"; the format's number where the address is none of IP's. For people.
[[nodiscard]] std::string describe(const OfiAddress& address);

/// The TCP connections of a rail that is given up, until nothing of theirs is left in this machine.
///
/// Why: what a put has in the kernel outlives its connection. A socket sends what it holds after it
/// was closed, and what it has sent may wait below it for a neighbour that does not answer; both
/// reach the target when a link that was cut comes back, over what has been put by another rail
/// since. So a connection is reset, which drops what it holds, and watched until the packets below
/// are gone too: a moment where they went out on the wire, 3 s where the kernel looks for the
/// neighbour. libfabric does not give its sockets out, so they are looked for among the process's
/// descriptors by the peer's address: walks through /proc/self/fd, for the rare moment when a rail
/// is given up. Addresses that are none of TCP's have no such queues: their devices drop what a
/// closed queue pair has not sent.
///
/// Where they cannot be looked for (no /proc, no descriptor left) nothing counts as gone any more:
/// better an operation that ends by its deadline than old bytes over new ones.
class Leavings {
 public:
  /// To be held from before hold() until after cut(): what one thread holds would look to another
  /// as if somebody else had the socket too.
  [[nodiscard]] static std::unique_lock<std::mutex> alone();
  /// Before the connections to the address are closed: keeps their sockets.
  void hold(const OfiAddress& address);
  /// After it: resets those that nobody else in this process has (other transports' to the same
  /// target go on).
  void cut();
  /// Looks again. @return nothing is left.
  [[nodiscard]] bool gone();

 private:
  std::vector<UniqueFd> sockets_;
  bool blind_ = false;  ///< not all of them could be looked for
};

/// Makes the TCP connections that are accepted at an address of this process's own end when the
/// initiator's machine does not answer any more (kernel's keep-alive: after 15 s to 25 s; where
/// answers to it are under way, its repeats of those, up to some 15 min): one that lost its link or
/// its power says no goodbye, and its connections would stay for good. The socket that listens
/// hands its options down. It is looked for among the descriptors made since next_descriptor() said
/// `opened_from`; only where it is not there (another thread has closed one below meanwhile, and
/// its number was taken) among all: sessions are opened while many are served.
void end_lost_connections(const OfiAddress& listening, int opened_from);
/// The lowest number that no descriptor has: those opened next have it and higher ones. -1: none.
[[nodiscard]] int next_descriptor();

}  // namespace ho::transport
