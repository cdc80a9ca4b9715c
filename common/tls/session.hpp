#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.hpp"
#include "common/tls/context.hpp"

struct ssl_st;
struct x509_store_ctx_st;

namespace ho::tls {

/// TLS over one connected socket that does not block. One owner thread. A resource.
///
///   handshaking --handshake() says kDone--> open --any error--> of no use
///
/// Bytes that are given to write() are encrypted at once and may change afterwards; what the socket
/// does not take waits here until flush(). No call raises SIGPIPE.
class Session {
 public:
  enum class Progress : std::uint8_t { kDone, kWantsRead, kWantsWrite };

  /// The end that connects. @param host  that was dialed, a name or a numeric address, which the
  /// peer's certificate must have, beside the role daemon; empty: see peer_must_be().
  /// The socket stays the caller's and outlives the session.
  [[nodiscard]] static Result<std::unique_ptr<Session>> connect(
      std::shared_ptr<const Context> context, int socket, const std::string& host);
  /// The end that connects to a daemon whose certificate's name it has from that daemon.
  [[nodiscard]] static Result<std::unique_ptr<Session>> connect_to_node(
      std::shared_ptr<const Context> context, int socket, const std::string& name);
  /// The end that listens.
  [[nodiscard]] static Result<std::unique_ptr<Session>> accept(
      std::shared_ptr<const Context> context, int socket);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Goes on with the handshake, as far as the socket lets it. With TLS 1.3 the end that connects
  /// is done before the other has checked its certificate; a refusal is an error of read().
  /// @return kPermissionDenied (a certificate is refused, and why), kUnavailable (the peer closed),
  /// kCorrupt (it does not speak TLS 1.3).
  [[nodiscard]] Result<Progress> handshake();
  [[nodiscard]] bool established() const { return peer_.has_value(); }
  /// The peer of an open session. Its role is nullopt where the certificate has none.
  [[nodiscard]] const CertificateFacts& peer() const { return *peer_; }

  /// Decrypts what has come. @return 0: the peer closed; kBusy: nothing is there;
  /// kPermissionDenied, kUnavailable, kCorrupt: as handshake().
  [[nodiscard]] Result<std::size_t> read(std::span<std::byte> into);
  /// Bytes have come from the socket that read() has not given out: no event reports them.
  [[nodiscard]] bool has_pending() const;
  /// Encrypts all of `from`. @return kUnavailable.
  [[nodiscard]] Result<void> write(std::span<const std::byte> from);
  /// Bytes that the socket has not taken.
  [[nodiscard]] std::size_t unsent() const { return out_.size() - sent_; }
  /// Gives them to the socket. @return whether all are gone; kUnavailable.
  [[nodiscard]] Result<bool> flush();
  /// From now on reads as much as there is at once, into 128 KiB.
  void read_ahead();

 private:
  Session(std::shared_ptr<const Context> context, ssl_st* handle, int socket)
      : context_(std::move(context)), handle_(handle), socket_(socket) {}
  [[nodiscard]] static Result<std::unique_ptr<Session>> make(std::shared_ptr<const Context> context,
                                                             int socket);
  static int note_refusal(int good, x509_store_ctx_st* check);
  [[nodiscard]] Error failure(int outcome) const;
  [[nodiscard]] Result<void> check_peer();

  const std::shared_ptr<const Context> context_;
  ssl_st* const handle_;
  const int socket_;
  std::string host_;       ///< that was dialed, or the name of its node
  bool by_name_ = false;   ///< the latter
  bool connects_ = false;  ///< else it listens
  std::string refusal_;    ///< why the peer's certificate is refused
  std::vector<char> out_;  ///< records; OpenSSL appends to it
  std::size_t sent_ = 0;   ///< how many of its bytes the socket has taken
  std::optional<CertificateFacts> peer_;
};

}  // namespace ho::tls
