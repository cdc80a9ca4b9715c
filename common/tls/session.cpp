#include "common/tls/session.hpp"

#include <openssl/sslerr.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <utility>

#include "common/base/check.hpp"
#include "common/tls/openssl.hpp"

namespace ho::tls {
namespace {

constexpr std::size_t kReadAheadBytes = std::size_t{128} << 10U;
constexpr std::size_t kWriteBytesMax = std::size_t{1} << 30U;
/// A buffer that has grown larger is given back once it is empty.
constexpr std::size_t kKeptBytesMax = std::size_t{512} << 10U;

/// What a peer's alert says of our certificate; nullptr: something else.
const char* alert_words(int reason) {
  switch (reason) {
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
      return "it does not trust the authority that issued our certificate";
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED: return "it finds our certificate expired";
    case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
    case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:
    case SSL_R_TLSV1_ALERT_ACCESS_DENIED: return "it refuses our certificate";
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED: return "it needs a certificate from us";
    default: return nullptr;
  }
}

int keep_record(BIO* bio, const char* data, std::size_t length, std::size_t* written) {
  auto& into = *static_cast<std::vector<char>*>(BIO_get_data(bio));
  into.insert(into.end(), data, data + length);
  *written = length;
  return 1;
}

long control_buffer(BIO* /*bio*/, int command, long /*number*/, void* /*data*/) {
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

/// Where OpenSSL writes records to: a buffer, which takes all. OpenSSL's own BIO of a
/// socket uses write(), which raises SIGPIPE, and wants the same bytes again for what the socket
/// did not take.
Bio make_buffer(std::vector<char>& buffer) {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* const made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "records");
    HO_CHECK(made != nullptr && BIO_meth_set_write_ex(made, keep_record) == 1 &&
             BIO_meth_set_ctrl(made, control_buffer) == 1);
    return made;
  }();
  Bio bio(BIO_new(method));
  HO_CHECK(bio != nullptr);
  BIO_set_data(bio.get(), &buffer);
  BIO_set_init(bio.get(), 1);
  return bio;
}

}  // namespace

Result<std::unique_ptr<Session>> Session::make(std::shared_ptr<const Context> context, int socket) {
  HO_CHECK(context != nullptr);
  ERR_clear_error();
  SSL* const handle = SSL_new(context->handle());
  if (handle == nullptr) return Error(Errc::kExhausted, "TLS: " + openssl_words());
  std::unique_ptr<Session> made(new Session(std::move(context), handle, socket));
  Bio in(BIO_new_socket(socket, BIO_NOCLOSE));
  if (!in) return Error(Errc::kExhausted, "TLS: " + openssl_words());
  Bio out = make_buffer(made->out_);
  SSL_set_app_data(handle, made.get());
  SSL_set_verify(handle, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, note_refusal);
  SSL_set_bio(handle, in.release(), out.release());
  return made;
}

Result<std::unique_ptr<Session>> Session::connect(std::shared_ptr<const Context> context,
                                                  int socket, const std::string& host) {
  auto made = make(std::move(context), socket);
  if (!made) return made;
  SSL* const handle = (*made)->handle_;
  SSL_set_connect_state(handle);
  (*made)->connects_ = true;
  (*made)->host_ = host;
  X509_VERIFY_PARAM* const wanted = SSL_get0_param(handle);
  const bool set = is_numeric(host)
                       ? X509_VERIFY_PARAM_set1_ip_asc(wanted, host.c_str()) == 1
                       : X509_VERIFY_PARAM_set1_host(wanted, host.c_str(), host.size()) == 1;
  if (host.empty() || !set) {
    return Error(Errc::kInvalidArgument, "\"" + host + "\": no name that a certificate could have");
  }
  return made;
}

Result<std::unique_ptr<Session>> Session::connect_to_node(std::shared_ptr<const Context> context,
                                                          int socket, const std::string& name) {
  auto made = make(std::move(context), socket);
  if (!made) return made;
  SSL_set_connect_state((*made)->handle_);
  (*made)->connects_ = true;
  (*made)->by_name_ = true;
  (*made)->host_ = name;
  return made;
}

Result<std::unique_ptr<Session>> Session::accept(std::shared_ptr<const Context> context,
                                                 int socket) {
  auto made = make(std::move(context), socket);
  if (made) SSL_set_accept_state((*made)->handle_);
  return made;
}

Session::~Session() { SSL_free(handle_); }

/// OpenSSL forgets the certificate that it refuses.
int Session::note_refusal(int good, x509_store_ctx_st* check) {
  if (good == 1) return 1;
  const auto* const handle = static_cast<const SSL*>(
      X509_STORE_CTX_get_ex_data(check, SSL_get_ex_data_X509_STORE_CTX_idx()));
  static_cast<Session*>(SSL_get_app_data(handle))->refusal_ = refusal_words(check);
  return 0;
}

/// Why a call failed for good. Takes the reason out of OpenSSL's queue.
Error Session::failure(int outcome) const {
  const int error_number = errno;
  const int kind = SSL_get_error(handle_, outcome);
  const unsigned long code = ERR_peek_error();
  const int reason = ERR_GET_REASON(code);
  const std::string words = openssl_words();
  if (kind == SSL_ERROR_ZERO_RETURN || reason == SSL_R_UNEXPECTED_EOF_WHILE_READING ||
      (kind == SSL_ERROR_SYSCALL && error_number == 0)) {
    return Error(Errc::kUnavailable,
                 established() ? "the peer closed the connection"
                               : "the peer closed the connection in the TLS handshake; does it "
                                 "speak TLS? (a daemon does with tls { } in its configuration)");
  }
  if (kind == SSL_ERROR_SYSCALL) return errno_error(error_number, "TLS");
  if (reason == SSL_R_CERTIFICATE_VERIFY_FAILED) {
    return Error(Errc::kPermissionDenied, refusal_);
  }
  if (reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE) {
    return Error(Errc::kPermissionDenied, "the peer shows no certificate");
  }
  if (const char* const alert = alert_words(reason)) return Error(Errc::kPermissionDenied, alert);
  return Error(Errc::kCorrupt, "TLS: " + words);
}

Result<void> Session::check_peer() {
  const Certificate leaf(SSL_get1_peer_certificate(handle_));
  HO_CHECK(leaf != nullptr);  // the context demands one
  CertificateFacts facts = facts_of(leaf.get());
  if (connects_ && facts.role != Role::kDaemon) {
    return Error(Errc::kPermissionDenied, "the certificate \"" + facts.name + "\" of " + host_ +
                                              " is not one of a daemon: it has no role daemon");
  }
  if (by_name_ && facts.name != host_) {
    return Error(Errc::kPermissionDenied,
                 "the certificate is that of \"" + facts.name + "\", and not of " + host_);
  }
  peer_ = std::move(facts);
  return {};
}

Result<Session::Progress> Session::handshake() {
  if (!established()) {
    ERR_clear_error();
    errno = 0;
    const int outcome = SSL_do_handshake(handle_);
    if (outcome != 1 && SSL_get_error(handle_, outcome) != SSL_ERROR_WANT_READ) {
      const Error why = failure(outcome);
      (void)flush();  // the alert, which tells the peer
      return why;
    }
    if (outcome == 1) {
      if (auto checked = check_peer(); !checked) return checked.error();
    }
  }
  const auto flushed = flush();
  if (!flushed) return flushed.error();
  if (!*flushed) return Progress::kWantsWrite;
  return established() ? Progress::kDone : Progress::kWantsRead;
}

Result<std::size_t> Session::read(std::span<std::byte> into) {
  HO_CHECK(established());
  ERR_clear_error();
  errno = 0;
  std::size_t got = 0;
  const int outcome = SSL_read_ex(handle_, into.data(), into.size(), &got);
  if (outcome == 1) return got;
  const int kind = SSL_get_error(handle_, outcome);
  if (kind == SSL_ERROR_ZERO_RETURN) return std::size_t{0};
  if (kind == SSL_ERROR_WANT_READ) return Error(Errc::kBusy, "nothing has come");
  return failure(outcome);
}

bool Session::has_pending() const { return SSL_has_pending(handle_) == 1; }

Result<void> Session::write(std::span<const std::byte> from) {
  HO_CHECK(established() && from.size() <= kWriteBytesMax);
  if (from.empty()) return {};
  ERR_clear_error();
  errno = 0;
  std::size_t written = 0;
  const int outcome = SSL_write_ex(handle_, from.data(), from.size(), &written);
  if (outcome != 1) return failure(outcome);
  HO_CHECK(written == from.size());  // memory takes all
  return {};
}

Result<bool> Session::flush() {
  while (unsent() > 0) {
    const ssize_t sent =
        ::send(socket_, out_.data() + sent_, unsent(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) return false;
    if (sent < 0) return Error(Errc::kUnavailable, errno_error(errno, "send").context());
    sent_ += static_cast<std::size_t>(sent);
  }
  out_.clear();
  if (out_.capacity() > kKeptBytesMax) out_.shrink_to_fit();
  sent_ = 0;
  return true;
}

void Session::read_ahead() {
  SSL_set_default_read_buffer_len(handle_, kReadAheadBytes);
  SSL_set_read_ahead(handle_, 1);
}

}  // namespace ho::tls
