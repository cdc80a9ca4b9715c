#pragma once

#include <array>
#include <span>
#include <string>

#include "common/base/result.hpp"

namespace ho::transport {

/// The names under which libfabric has had its own protocol for our kind of endpoint over TCP:
/// `net` in 1.16 and 1.17, and `tcp` since 1.18, which took `net`'s code and place. Both ends of a
/// transfer may have either: the protocol stayed compatible. In 1.17 there is a `tcp` too, of
/// another protocol, but never under that bare name: it serves our kind of endpoint as
/// "tcp;ofi_rxm".
/// `net` is preferred where there are two, because it beats "tcp;ofi_rxm" in all but bandwidth,
/// where they are equal (measured 2026-11 on a loaded 2-core virtual machine): a 64 B get takes 15
/// us, not 75 us, and an endpoint costs 0.01 ms, not 36 ms.
/// Source: fi_tcp(7) of libfabric 2.6 and fi_net(7) of 1.17.
inline constexpr std::array<const char*, 2> kTcpProviders = {"net", "tcp"};

/// Which provider a target uses: pure. `named` as somebody configured it; empty: libfabric's TCP.
/// `here` as fi_getinfo() calls those that have our kind of endpoint on this machine. One that is
/// named is taken as it is, or else below the utility provider that gives it such endpoints ("tcp"
/// is "tcp;ofi_rxm" then), or else as it is nevertheless, and libfabric will say that it has none.
/// "net" is "tcp" where libfabric has only the later name, so a configuration outlives its update.
/// @return kUnsupported: no name given, and none of kTcpProviders here.
[[nodiscard]] Result<std::string> choose_provider(const std::string& named,
                                                  std::span<const std::string> here);

/// Which provider an initiator reaches a target by that speaks `theirs` (as choose_provider() gave
/// it there): the same, or the other of kTcpProviders.
/// @return kInvalidArgument: `named` is not that one, nor speaks its protocol.
[[nodiscard]] Result<std::string> choose_provider_towards(const std::string& theirs,
                                                          const std::string& named,
                                                          std::span<const std::string> here);

/// Whether connections over this provider (full name) are the kernel's TCP sockets.
[[nodiscard]] bool runs_over_tcp(const std::string& provider);

/// Whether a target gives each session endpoints and keys of its own over this provider (full
/// name). Over TCP that costs 40 KB and some descriptors; an endpoint of ofi_rxm's takes 70 MB and
/// 0.1 s (1.17; 130 MB and 0.2 s with 2.6), and devices have few: there all sessions share.
[[nodiscard]] bool separates_tenants(const std::string& provider);

/// Whether over this provider (full name) the target's device alone serves an access, and no
/// instruction of the target's process touches the memory: then nothing comes in once the
/// registration is closed.
[[nodiscard]] bool serves_by_device(const std::string& provider);

}  // namespace ho::transport
