#pragma once

#include <cstdint>
#include <string>

#include "common/base/result.hpp"
#include "common/transport/transport.hpp"

namespace ho::transport {

/// How an exposed region is named in an access to it.
struct UcxKey {
  std::uint64_t base = 0;  ///< the target's virtual address, added to an offset
  std::uint64_t length_bytes = 0;
  Rights rights = Rights::kRead;
  std::string packed;  ///< bytes of ucp_rkey_pack()
};

/// A worker's address as text: "ucx", its bytes in hexadecimal and their checksum, separated by
/// '/'. The checksum, here and in keys, is there since UCX trusts bytes that it unpacks.
[[nodiscard]] std::string encode_ucx_address(const std::string& worker);
/// @return the worker's bytes; kInvalidArgument where the text is not such an address.
[[nodiscard]] Result<std::string> decode_ucx_address(const std::string& text);

/// The key as RegionGrant carries it: base, length, rights, packed bytes and their checksum, in
/// hexadecimal, separated by '/'.
[[nodiscard]] std::string encode_ucx_key(const UcxKey& key);
/// @return kInvalidArgument where the text is not such a key.
[[nodiscard]] Result<UcxKey> decode_ucx_key(const std::string& text);

}  // namespace ho::transport
