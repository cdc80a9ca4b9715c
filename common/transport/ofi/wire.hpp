#pragma once

#include <cstdint>
#include <string>

#include "common/base/result.hpp"
#include "common/transport/transport.hpp"

namespace ho::transport {

/// What the target's page holds that connect() reads: proof that the answerer is one of ours.
inline constexpr std::uint64_t kHelloMagic = 0x31494f464f4f4859U;
inline constexpr std::uint64_t kHelloBytes = sizeof(kHelloMagic);

/// How memory registered at a target is named in an access to it.
struct RemoteKey {
  std::uint64_t key = 0;
  std::uint64_t base = 0;  ///< added to an offset: 0, or the virtual address (FI_MR_VIRT_ADDR)
  std::uint64_t length_bytes = 0;
  Rights rights = Rights::kRead;
};

/// A target's address. As text: five fields separated by '/': provider, libfabric's address format,
/// its address bytes in hexadecimal, and the hello page's key and base.
struct OfiAddress {
  std::string provider;
  std::uint32_t format = 0;
  std::string name;  ///< raw bytes of fi_getname()
  RemoteKey hello;
};

[[nodiscard]] std::string encode_address(const OfiAddress& address);
/// @return kInvalidArgument where the text is not such an address.
[[nodiscard]] Result<OfiAddress> decode_address(const std::string& text);

/// The key as RegionGrant carries it: four hexadecimal numbers separated by '/'.
[[nodiscard]] std::string encode_key(const RemoteKey& key);
/// @return kInvalidArgument where the text is not such a key.
[[nodiscard]] Result<RemoteKey> decode_key(const std::string& text);

}  // namespace ho::transport
