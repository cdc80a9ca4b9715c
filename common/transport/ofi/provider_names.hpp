#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "common/base/result.hpp"

namespace ho::transport {

/// libfabric's providers that are devices', from the best on. All others move bytes by the CPUs of
/// both ends and trust their peers' messages: they are emulation to us.
inline constexpr std::array<const char*, 3> kDeviceProviders = {"cxi", "efa", "verbs"};

/// The names under which libfabric has had its own protocol for our kind of endpoint over TCP:
/// `net` in 1.16 and 1.17, and `tcp` since 1.18. Both ends of a transfer may have either.
/// Source: fi_tcp(7) of libfabric 2.6 and fi_net(7) of 1.17.
inline constexpr std::array<const char*, 2> kTcpProviders = {"net", "tcp"};

enum class Emulation : std::uint8_t { kForbidden, kAllowed };

/// Which provider a target uses: pure. `named` as somebody configured it; empty: the best device's,
/// else, where that is allowed, libfabric's TCP. `here` as fi_getinfo() calls those that have our
/// kind of endpoint on this machine. One that is named is taken as it is, or else below the utility
/// provider that gives it such endpoints ("verbs" is "verbs;ofi_rxm" then), or else as it is
/// nevertheless, and libfabric will say that it has none.
/// @return kUnsupported: no device here, or emulation that is not allowed.
[[nodiscard]] Result<std::string> choose_provider(const std::string& named,
                                                  std::span<const std::string> here,
                                                  Emulation emulation);

/// Which provider an initiator reaches a target by that speaks `theirs` (as choose_provider() gave
/// it there): the same, or the other of kTcpProviders.
/// @return kInvalidArgument: `named` is not that one, nor speaks its protocol; kUnsupported: as
/// choose_provider().
[[nodiscard]] Result<std::string> choose_provider_towards(const std::string& theirs,
                                                          const std::string& named,
                                                          std::span<const std::string> here,
                                                          Emulation emulation);

/// Whether over this provider (full name) the target's device alone serves an access, and no
/// instruction of the target's process touches the memory: then nothing comes in once the
/// registration is closed.
[[nodiscard]] bool serves_by_device(const std::string& provider);

}  // namespace ho::transport
