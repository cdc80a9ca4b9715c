#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/transport/target.hpp"
#include "common/transport/transport.hpp"

namespace ho::transport {

/// How the initiator's side of the libfabric driver behaves.
struct OfiOptions {
  static constexpr std::uint32_t kConnectionsMax = 16;
  std::string provider;          ///< libfabric's name; empty: what the peer's target speaks
  std::string domain;            ///< libfabric's name of the device to go out by; empty: any
  std::string source_address;    ///< numeric, to go out from; empty: any
  bool allow_emulation = false;  ///< also libfabric's TCP, where the target speaks that
  /// To each address of a target, for operations above 64 KiB; smaller ones have another.
  std::uint32_t connections = 1;
  std::uint32_t depth_ops_max = 4096;  ///< operations accepted and not yet polled
};

/// Makes the initiator's side of the `ofi` driver, for libfabric's device providers: endpoints of
/// its own for each peer and rail, so that closing a peer ends its operations and no other's.
///
/// A rail that is lost ends its peer: no target of this driver ends its side of one. attach() reads
/// one byte with the grant's key over a connection of its own and answers kPermissionDenied where
/// the target refuses it. A key that turns bad later costs the peer: the target answers it by
/// dropping the connection, and does not say which operation was at fault.
///
/// `clock` outlives the transport. @return kInvalidArgument. A provider that libfabric does not
/// have shows at connect() as kUnsupported.
[[nodiscard]] Result<std::unique_ptr<Transport>> make_ofi_transport(const OfiOptions& options,
                                                                    const Clock& clock);

/// One address that the daemon's side listens at.
struct OfiListen {
  std::string domain = {};   ///< libfabric's name of the device to serve; empty: any
  std::string address = {};  ///< numeric, reachable by peers; empty: as the provider likes
};

/// Where the daemon's side listens.
struct OfiTargetOptions {
  std::string provider = {};     ///< libfabric's name; empty: the best device's
  bool allow_emulation = false;  ///< takes libfabric's TCP too: tests, and peers that are trusted
  std::vector<OfiListen> rails = {OfiListen{}};  ///< 1 .. 8; all are offered to every initiator
};

/// Makes the daemon's side of the `ofi` driver. ExposeRequest must name whole pages and the memfd
/// behind them: where the provider moves bytes by itself, the target serves them through an alias
/// of its own, which revoke() replaces, so that a transfer caught half-way never touches the memory
/// again. All sessions share one table of keys: a key is a bearer secret.
/// @return kUnsupported where libfabric has no such provider, or one that needs emulation;
/// kInvalidArgument; kIo: of the first rail that cannot be, which is named.
[[nodiscard]] Result<std::unique_ptr<Target>> make_ofi_target(const OfiTargetOptions& options);

/// What a target would take: checks the provider (empty: the best device's) and, where one is
/// named, the domain. @return kUnsupported, kNotFound: with those there are.
[[nodiscard]] Result<void> check_ofi_provider(const std::string& provider, bool allow_emulation);
[[nodiscard]] Result<void> check_ofi_domain(const std::string& provider, bool allow_emulation,
                                            const std::string& domain);

/// Loads libfabric. All functions here do so by themselves; who calls libfabric's own functions
/// does it first. Any thread; further calls are cheap. @return kUnsupported, with the reason.
[[nodiscard]] Result<void> open_libfabric();

/// libfabric's TCP, by the name it has here, for what is held against our own. @return
/// kUnsupported.
[[nodiscard]] Result<std::string> libfabric_tcp();

}  // namespace ho::transport
