#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "common/base/result.hpp"
#include "common/base/shared_slot.hpp"
#include "common/tls/certificate.hpp"

struct ssl_ctx_st;

namespace ho::tls {

/// Whether our certificate and those that issued it must be valid now.
enum class Times : std::uint8_t { kChecked, kUnchecked };

/// A certificate, its key and the authority that peers are checked with, ready for connections at
/// either end: TLS 1.3 and nothing older, both ends show a certificate. Immutable: any thread may
/// use it. Changed files need a new one; connections keep theirs.
class Context {
 public:
  /// Reads and checks the files.
  /// @param times  kUnchecked: certificates that have expired, or are not valid yet, are taken,
  /// too. Peers refuse them.
  /// @return kNotFound, kPermissionDenied (also for a key that others can read), kInvalidArgument
  /// (no PEM, a key of another certificate, issued by another authority, no role; with kChecked
  /// also expired, or not valid yet). The text names the file and the remedy.
  [[nodiscard]] static Result<std::shared_ptr<const Context>> load(const Files& files,
                                                                   Times times = Times::kChecked);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  [[nodiscard]] const Files& files() const { return files_; }
  [[nodiscard]] const CertificateFacts& facts() const { return facts_; }
  /// The name and role that peers see.
  [[nodiscard]] Identity own() const { return {facts_.name, *facts_.role}; }
  [[nodiscard]] ssl_ctx_st* handle() const { return handle_; }

 private:
  Context(Files files, CertificateFacts facts, ssl_ctx_st* handle)
      : files_(std::move(files)), facts_(std::move(facts)), handle_(handle) {}

  const Files files_;
  const CertificateFacts facts_;
  ssl_ctx_st* const handle_;
};

/// Reads and checks files for connections that others make, as those to etcd: as Context::load(),
/// but the certificate needs neither a name nor a role, and any authority may have issued it.
[[nodiscard]] Result<void> check_files(const Files& files);

/// The context that new connections use: the control thread reloads what the data thread uses.
using ContextSlot = SharedSlot<const Context>;

}  // namespace ho::tls
