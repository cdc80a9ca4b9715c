#pragma once

#include <cstdint>
#include <string>

#include "common/base/result.hpp"
#include "common/transport/ofi/endpoint.hpp"

namespace ho::transport {

/// The libfabric interface we are written to.
inline constexpr std::uint32_t kFabricVersion = FI_VERSION(1, 17);

/// What both sides ask of a provider; empty: any. @return kExhausted.
[[nodiscard]] Result<InfoHandle> common_hints(const std::string& provider);

/// choose_provider() and choose_provider_towards() with what this machine has.
[[nodiscard]] Result<std::string> provider_here(const std::string& named, bool allow_emulation);
[[nodiscard]] Result<std::string> provider_towards(const std::string& theirs,
                                                   const std::string& named, bool allow_emulation);

/// One way of the provider's to serve `hints`, where a domain is named in that one: some providers
/// take no notice of the name themselves.
struct Wanted {
  const char* node = nullptr;  ///< as fi_getinfo() takes them
  const char* service = nullptr;
  std::uint64_t flags = 0;
  std::string domain;  ///< empty: any
};
/// @return kUnsupported: none, with what there is.
[[nodiscard]] Result<InfoHandle> choose_info(const fi_info& hints, const Wanted& wanted);

/// A numeric IP address, any port, as libfabric's bytes in the address format of a peer.
/// @return kInvalidArgument: the format is not IP's, or of the other version.
[[nodiscard]] Result<std::string> source_name(const std::string& address, std::uint32_t format);

}  // namespace ho::transport
