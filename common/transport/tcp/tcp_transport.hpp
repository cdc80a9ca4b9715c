#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/base/tally.hpp"
#include "common/tls/context.hpp"
#include "common/transport/target.hpp"
#include "common/transport/traffic.hpp"
#include "common/transport/transport.hpp"

namespace ho::transport {

/// How the initiator's side of the `tcp` driver behaves.
struct TcpOptions {
  static constexpr std::uint32_t kConnectionsMax = 16;
  std::string source_address;  ///< numeric, to go out from; empty: any
  /// The folder of the job's certificate, read at each new rail; for targets with TLS.
  std::string tls_folder = {};
  /// To each address of a target, for operations above 64 KiB; smaller ones have another.
  std::uint32_t connections = 1;
  std::uint32_t depth_ops_max = 4096;  ///< operations accepted and not yet polled
};

/// Makes the initiator's side of the `tcp` driver: our own one-sided protocol on sockets.
/// PeerAddress names the session, which the target must have admitted. `clock` outlives the
/// transport.
/// @return kInvalidArgument.
[[nodiscard]] Result<std::unique_ptr<Transport>> make_tcp_transport(const TcpOptions& options,
                                                                    const Clock& clock);

/// One address that the daemon's side listens at.
struct TcpRail {
  std::string address = "127.0.0.1";  ///< numeric, reachable by peers; not a wildcard
  std::uint16_t port = 0;             ///< 0: the system chooses
  /// What sessions together move at most, each way: a little less than what the link carries, so
  /// that this target divides it among them, rather than the network. 0: as much as there is.
  std::uint64_t link_bytes_per_s = 0;
};

struct TcpTargetOptions {
  std::vector<TcpRail> rails = {TcpRail{}};  ///< 1 .. 8; all are offered to every initiator
  /// Counts accesses and connections that were refused. nullptr: nobody does.
  std::shared_ptr<Tally> refusals;
  /// Its context at the time is that of each new connection. nullptr: without TLS.
  std::shared_ptr<tls::ContextSlot> tls = {};
  /// Counts what was served, on the target's thread. nullptr: nobody does.
  std::shared_ptr<Traffic> traffic = {};
};

/// Makes the daemon's side of the `tcp` driver: serves gets straight from the exposed memory and
/// puts straight into it, in progress(), on connections that have shown a session's token. Every
/// offset, length, right and generation is checked before a byte moves. What a peer sends costs its
/// own connection at most, and holds a bounded amount of memory.
/// @return kInvalidArgument; kAlreadyExists (port taken), kIo: of the first rail that cannot be
/// had.
[[nodiscard]] Result<std::unique_ptr<Target>> make_tcp_target(const TcpTargetOptions& options);

}  // namespace ho::transport
