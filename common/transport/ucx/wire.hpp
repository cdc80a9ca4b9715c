#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.hpp"
#include "common/transport/transport.hpp"

namespace ho::transport {

/// How an exposed region is named in an access to it.
struct UcxKey {
  std::uint64_t base = 0;  ///< the target's virtual address, added to an offset
  std::uint64_t length_bytes = 0;
  Rights rights = Rights::kRead;
  std::vector<std::string> packed;  ///< bytes of ucp_rkey_pack(), by the target's workers
};

/// A target's address as text: for each worker "ucx", then the bytes of ucp_worker_get_address() in
/// hexadecimal and their checksum, separated by '/'; between workers ','. Addresses and keys have
/// checksums because UCX trusts the bytes that it unpacks.
[[nodiscard]] std::string encode_ucx_address(std::span<const std::string> workers);
/// @return the bytes, by worker; kInvalidArgument: not an address of 1 .. kRailsMax workers.
[[nodiscard]] Result<std::vector<std::string>> decode_ucx_address(const std::string& text);

/// The key as RegionGrant carries it: base, length, rights, then the packed bytes and their
/// checksum for each worker, in hexadecimal, separated by '/'.
[[nodiscard]] std::string encode_ucx_key(const UcxKey& key);
/// @return kInvalidArgument: not such a key for 1 .. kRailsMax workers.
[[nodiscard]] Result<UcxKey> decode_ucx_key(const std::string& text);

}  // namespace ho::transport
