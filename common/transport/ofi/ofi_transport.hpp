#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/base/tally.hpp"
#include "common/base/units.hpp"
#include "common/transport/target.hpp"
#include "common/transport/transport.hpp"

namespace ho::transport {

/// How the initiator's side of the libfabric driver behaves.
struct OfiOptions {
  std::string provider;        ///< libfabric's name; empty: what speaks to the peer's target
  std::string domain;          ///< libfabric's name of the device to go out by; empty: any
  std::string source_address;  ///< numeric, to go out from; empty: any
  std::uint32_t depth_ops_max = 4096;  ///< operations accepted and not yet polled
  std::uint64_t chunk_bytes = kMiB;    ///< larger operations are cut into pieces of this size
  std::uint32_t chunks_max = 1024;     ///< pieces in flight to all peers together; 1 .. 1024
  std::uint64_t flight_bytes_max = 32 * kMiB;  ///< bytes of large operations in flight to one peer
  std::uint32_t large_lanes = 1;  ///< connections a rail for operations above 64 KiB; 1 .. 16
};

/// Makes the initiator's side of the `ofi` driver: libfabric endpoints of its own for each peer, so
/// that closing a peer ends its operations and no other's: one for operations up to 64 KiB, and
/// some for larger ones, over which their pieces are spread.
///
/// A peer may have several rails (addresses, each with a link behind it). Each has such endpoints,
/// and the pieces are spread over all of them by how much is in flight. connect() leaves out the
/// rails that do not answer. One whose connection breaks, or that gives no answer for 0.5 s while
/// another one does, is given up: what was in flight on it is repeated on the others, and no
/// operation fails that had 0.8 s or more when the link was cut; it has 4 s then, since puts wait
/// until nothing of what the rail was given can come in late (at once where it went out on the
/// wire, up to 3 s where the link was lost at this end and the kernel keeps packets for it). With
/// several large_lanes silence takes as many times longer to tell, so deadlines have to be longer
/// too. Neither a bad key nor a target that is stopped is a rail's fault; a peer's last rail fails
/// with the peer. A rail that is left out is tried again, on a thread that lives for that, while
/// operations are under way: after 5 s, then after twice as long each time, up to 60 s. Giving a
/// rail up and taking it back allocates, logs a line and takes milliseconds. With a source_address
/// or domain named, rails that are not reached from there are left out.
///
/// connect() reads a page that every target exposes, so it fails where nobody answers. attach()
/// reads one byte with the grant's key over a connection of its own and answers kPermissionDenied
/// where the target refuses it. A key that turns bad later (a revoked grant) costs the peer: over
/// TCP the target answers a bad key, a bad range or a missing right by dropping the
/// connection, and does not say which operation was at fault. All operations in flight to that peer
/// then end with kUnavailable and the owner connects anew.
///
/// An operation that passes its deadline closes its peer: it ends with kDeadline, the peer's others
/// with kUnavailable. `clock` outlives the transport.
/// @return kInvalidArgument. A provider that libfabric does not have shows at connect() as
/// kUnsupported.
[[nodiscard]] Result<std::unique_ptr<Transport>> make_ofi_transport(const OfiOptions& options,
                                                                    const Clock& clock);

/// One address that the daemon's side listens at.
struct OfiRail {
  std::string domain = {};  ///< libfabric's name of the device to serve; empty: any
  /// Numeric, reachable by peers; not a wildcard. Empty: as the provider likes, for those whose
  /// addresses are not IP's.
  std::string bind_address = "127.0.0.1";
  std::uint16_t port = 0;  ///< 0: the system chooses
};

/// Where the daemon's side listens.
struct OfiTargetOptions {
  std::string provider = {};                 ///< libfabric's name; empty: its TCP, `net` or `tcp`
  std::vector<OfiRail> rails = {OfiRail{}};  ///< 1 .. 8; all are offered to every initiator
  /// Counts accesses and connections that were refused. nullptr: nobody does.
  std::shared_ptr<Tally> refusals;
};

/// Makes the daemon's side of the `ofi` driver. ExposeRequest must name whole pages and the memfd
/// behind them: the target serves it through an alias of its own, which revoke() replaces, so that
/// a transfer caught half-way never touches the memory again.
/// Every exposure can be reached by every rail. @return kUnsupported where libfabric has no such
/// provider; kInvalidArgument; kIo (port taken): of the first rail that cannot be, which is named.
[[nodiscard]] Result<std::unique_ptr<Target>> make_ofi_target(const OfiTargetOptions& options);

/// How many rails a target's address names; 0: it is none of this driver's.
[[nodiscard]] std::size_t ofi_rail_count(const std::string& address);

/// The provider that a target takes where none is named. @return kUnsupported: there is none.
[[nodiscard]] Result<std::string> usual_ofi_provider();

/// Whether libfabric has the provider (empty: one for TCP) on this machine. @return kUnsupported,
/// with those it has.
[[nodiscard]] Result<void> check_ofi_provider(const std::string& provider);

/// Whether the provider (empty: the one for TCP) has the domain. @return kNotFound, with those it
/// has.
[[nodiscard]] Result<void> check_ofi_domain(const std::string& provider, const std::string& domain);

/// The address that a network interface of this machine is reached by: its first IPv4 one, else
/// IPv6 beyond its link. @return kNotFound, with the interfaces there are; kUnavailable: it has
/// none.
[[nodiscard]] Result<std::string> interface_address(const std::string& name);

}  // namespace ho::transport
