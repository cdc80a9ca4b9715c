#include "daemon/tier/flash/log/access_hash.hpp"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <span>

#include "common/base/check.hpp"

namespace ho::flash {

AccessHash hash_access(ExtentId extent, std::uint64_t secret) {
  // Without a configuration file: reading one leaves an allocation behind in this thread.
  ::OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG, nullptr);
  const std::array<std::uint64_t, 2> text{extent.value(), secret};
  std::array<std::byte, EVP_MAX_MD_SIZE> digest{};
  unsigned length = 0;
  const int hashed =
      ::EVP_Digest(text.data(), sizeof(text), reinterpret_cast<unsigned char*>(digest.data()),
                   &length, ::EVP_sha256(), nullptr);
  AccessHash out{};
  HO_CHECK(hashed == 1 && length >= out.size());
  std::copy_n(digest.begin(), out.size(), out.begin());
  return out;
}

bool same_access(const AccessHash& a, const AccessHash& b) {
  return ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace ho::flash
