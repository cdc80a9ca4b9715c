#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.hpp"
#include "common/transport/striping/rail.hpp"
#include "common/transport/transport.hpp"

namespace ho::transport {

/// What the target's page holds that connect() reads: proof that the answerer is our target.
inline constexpr std::uint64_t kHelloMagic = 0x31494f464f4f4859U;
inline constexpr std::uint64_t kHelloBytes = sizeof(kHelloMagic);

/// How memory registered at a target is named in an access to it.
struct RemoteKey {
  std::uint64_t key = 0;
  std::uint64_t base = 0;  ///< added to an offset: 0, or the virtual address (FI_MR_VIRT_ADDR)
  std::uint64_t length_bytes = 0;
  Rights rights = Rights::kRead;
  bool operator==(const RemoteKey&) const = default;
};

/// One rail of a target's: an address it listens at. As text: five fields separated by '/':
/// the target's provider as libfabric calls it there, libfabric's address format, its address bytes
/// in hexadecimal, and the hello page's key and base.
struct OfiAddress {
  std::string provider;
  std::uint32_t format = 0;
  std::string name;  ///< raw bytes of fi_getname()
  RemoteKey hello;
};

[[nodiscard]] std::string encode_address(const OfiAddress& address);
/// @return kInvalidArgument where the text is not such an address.
[[nodiscard]] Result<OfiAddress> decode_address(const std::string& text);

/// A target's address: its rails', in their order, separated by ','.
[[nodiscard]] std::string encode_addresses(std::span<const OfiAddress> rails);
/// @return kInvalidArgument where the text is none of 1 .. kRailsMax addresses.
[[nodiscard]] Result<std::vector<OfiAddress>> decode_addresses(const std::string& text);

/// A region's key on one rail: four hexadecimal numbers separated by '/'.
[[nodiscard]] std::string encode_key(const RemoteKey& key);
/// @return kInvalidArgument where the text is not such a key.
[[nodiscard]] Result<RemoteKey> decode_key(const std::string& text);

/// The key as RegionGrant carries it: one for all rails where they are equal, else one for each, in
/// the order of the rails, separated by ','.
[[nodiscard]] std::string encode_keys(std::span<const RemoteKey> keys);
/// @return one for each of `rails`; kInvalidArgument where the text is not such a key.
[[nodiscard]] Result<std::vector<RemoteKey>> decode_keys(const std::string& text,
                                                         std::size_t rails);

}  // namespace ho::transport
