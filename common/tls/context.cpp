#include "common/tls/context.hpp"

#include <utility>
#include <vector>

#include "common/base/check.hpp"
#include "common/tls/openssl.hpp"

namespace ho::tls {
namespace {

void free_chain(STACK_OF(X509) * chain) { sk_X509_free(chain); }

using Chain = std::unique_ptr<STACK_OF(X509), FreedBy<free_chain>>;
using Handle = std::unique_ptr<SSL_CTX, FreedBy<SSL_CTX_free>>;

/// All of OpenSSL's for TLS 1.3; the one that processors are fastest at first.
constexpr const char* kCiphers =
    "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";

Handle make_handle() {
  Handle handle(SSL_CTX_new(TLS_method()));
  HO_CHECK(handle != nullptr);
  SSL_CTX* const ctx = handle.get();
  HO_CHECK(SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION) == 1);
  HO_CHECK(SSL_CTX_set_ciphersuites(ctx, kCiphers) == 1);
  SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  // No tickets: each connection is checked by its certificates, as they are then.
  SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
  HO_CHECK(SSL_CTX_set_num_tickets(ctx, 0) == 1);
  SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS);
  return handle;
}

/// Whether our own certificate would stand the peers' check.
Result<void> check_own(SSL_CTX* ctx, const Files& files, std::vector<Certificate>& chain,
                       Times times) {
  const Chain between(sk_X509_new_null());
  for (std::size_t i = 1; i < chain.size(); ++i) sk_X509_push(between.get(), chain[i].get());
  const StoreContext check(X509_STORE_CTX_new());
  HO_CHECK(check != nullptr);
  X509* const leaf = chain.front().get();
  if (X509_STORE_CTX_init(check.get(), SSL_CTX_get_cert_store(ctx), leaf, between.get()) != 1) {
    return Error(Errc::kIo, files.certificate + ": " + openssl_words());
  }
  if (times == Times::kUnchecked) X509_STORE_CTX_set_flags(check.get(), X509_V_FLAG_NO_CHECK_TIME);
  const bool stands = X509_verify_cert(check.get()) == 1;
  ERR_clear_error();
  if (stands) return {};
  const std::string why = refusal_words(check.get());
  return Error(Errc::kInvalidArgument, files.certificate + ": " + why + " (" + files.authority +
                                           "); issue another, as with: hyperoffload ca issue");
}

Result<void> trust(SSL_CTX* ctx, const Files& files) {
  const auto text = read_text(files.authority);
  if (!text) return text.error();
  auto certificates = parse_certificates(files.authority, *text);
  if (!certificates) return certificates.error();
  for (const Certificate& one : *certificates) {
    // A certificate may be there twice.
    X509_STORE_add_cert(SSL_CTX_get_cert_store(ctx), one.get());
  }
  ERR_clear_error();
  return {};
}

Result<std::vector<Certificate>> show(SSL_CTX* ctx, const Files& files) {
  const auto text = read_text(files.certificate);
  if (!text) return text.error();
  auto chain = parse_certificates(files.certificate, *text);
  if (!chain) return chain.error();
  const auto secret = read_secret(files.key);
  if (!secret) return secret.error();
  const auto key = parse_key(files.key, *secret);
  if (!key) return key.error();
  if (X509_check_private_key(chain->front().get(), key->get()) != 1) {
    ERR_clear_error();
    return Error(Errc::kInvalidArgument,
                 files.key + ": not the key of the certificate " + files.certificate);
  }
  if (SSL_CTX_use_certificate(ctx, chain->front().get()) != 1 ||
      SSL_CTX_use_PrivateKey(ctx, key->get()) != 1) {
    return Error(Errc::kInvalidArgument, files.certificate + ": " + openssl_words());
  }
  for (std::size_t i = 1; i < chain->size(); ++i) {
    if (SSL_CTX_add1_chain_cert(ctx, (*chain)[i].get()) != 1) {
      return Error(Errc::kInvalidArgument, files.certificate + ": " + openssl_words());
    }
  }
  return chain;
}

}  // namespace

Result<std::shared_ptr<const Context>> Context::load(const Files& files, Times times) {
  ERR_clear_error();
  Handle handle = make_handle();
  auto chain = show(handle.get(), files);
  if (!chain) return chain.error();
  if (auto trusted = trust(handle.get(), files); !trusted) return trusted.error();
  if (auto stands = check_own(handle.get(), files, *chain, times); !stands) return stands.error();
  CertificateFacts facts = facts_of(chain->front().get());
  if (!facts.role || facts.name.empty()) {
    return Error(
        Errc::kInvalidArgument,
        files.certificate +
            ": its subject needs a name (CN, 1 to 64 of letters, digits and \"._-@:+ \") and "
            "one role: OU=hyperoffload-daemon, -job, -admin or -reader");
  }
  return std::shared_ptr<const Context>(new Context(files, std::move(facts), handle.release()));
}

Result<void> check_files(const Files& files) {
  ERR_clear_error();
  const Handle handle = make_handle();
  auto chain = show(handle.get(), files);
  if (!chain) return chain.error();
  if (auto trusted = trust(handle.get(), files); !trusted) return trusted;
  // The server decides on the issuer: its clients' authority may be another than its own.
  X509_STORE* const store = SSL_CTX_get_cert_store(handle.get());
  X509_STORE_add_cert(store, chain->front().get());
  X509_STORE_set_flags(store, X509_V_FLAG_PARTIAL_CHAIN);
  return check_own(handle.get(), files, *chain, Times::kChecked);
}

Context::~Context() { SSL_CTX_free(handle_); }

}  // namespace ho::tls
