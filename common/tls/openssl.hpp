#pragma once

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <memory>
#include <string>
#include <vector>

#include "common/base/result.hpp"
#include "common/tls/certificate.hpp"

// Private to this folder: OpenSSL's handles as resources, and what its .cpp files share.
namespace ho::tls {

template <auto kFree>
struct FreedBy {
  template <typename Handle>
  void operator()(Handle* handle) const {
    kFree(handle);
  }
};

using Bio = std::unique_ptr<BIO, FreedBy<BIO_free_all>>;
using Certificate = std::unique_ptr<X509, FreedBy<X509_free>>;
using PrivateKey = std::unique_ptr<EVP_PKEY, FreedBy<EVP_PKEY_free>>;
using Store = std::unique_ptr<X509_STORE, FreedBy<X509_STORE_free>>;
using StoreContext = std::unique_ptr<X509_STORE_CTX, FreedBy<X509_STORE_CTX_free>>;

/// What OpenSSL says of its last failure; takes it out of its queue.
[[nodiscard]] std::string openssl_words();

/// A whole file of at most 1 MiB. @return kNotFound, kPermissionDenied, kIo, kInvalidArgument.
[[nodiscard]] Result<std::string> read_text(const std::string& file);
/// The same for a private key, which others must not be able to read or change.
/// @return also kPermissionDenied with the remedy.
[[nodiscard]] Result<std::string> read_secret(const std::string& file);

/// The certificates of a PEM text, in its order; at least one. @return kInvalidArgument.
[[nodiscard]] Result<std::vector<Certificate>> parse_certificates(const std::string& file,
                                                                  const std::string& text);
/// @return kInvalidArgument, also for a key that is encrypted.
[[nodiscard]] Result<PrivateKey> parse_key(const std::string& file, const std::string& text);

/// "node1, 10.0.0.1"
[[nodiscard]] std::string addresses_text(const CertificateFacts& facts);

/// What a certificate says.
[[nodiscard]] CertificateFacts facts_of(X509* certificate);

/// Why a check of a chain of certificates has failed.
[[nodiscard]] std::string refusal_words(X509_STORE_CTX* check);

}  // namespace ho::tls
