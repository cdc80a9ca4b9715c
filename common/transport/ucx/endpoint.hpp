#pragma once

#include <ucp/api/ucp.h>

#include <memory>
#include <string>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/transport/ucx/context.hpp"

namespace ho::transport {

/// A remote key unpacked for one endpoint. Destroyed before the context's worker.
struct UcxRkeyDestroy {
  void operator()(ucp_rkey_h key) const { ucp_rkey_destroy(key); }
};
using UcxRkey = std::unique_ptr<ucp_rkey, UcxRkeyDestroy>;

/// One reliable connection to a worker. Owner thread: the context's user.
///
///   open --failed() or start_close()--> closing --closed()--> closed
///
/// Every request on it ends with its callback before it is closed. Only then are the request's
/// bytes free.
class UcxEndpoint {
 public:
  /// Begins to connect; nothing is sent yet. @return kUnavailable; kInvalidArgument.
  [[nodiscard]] static Result<std::unique_ptr<UcxEndpoint>> create(UcxContext& context,
                                                                   const std::string& worker);
  /// Closes by force and waits for it.
  ~UcxEndpoint();
  UcxEndpoint(const UcxEndpoint&) = delete;
  UcxEndpoint& operator=(const UcxEndpoint&) = delete;

  /// Starts the wire-up, which ready() follows.
  void start_connect();
  /// Whether the wire-up has ended; error() says how.
  [[nodiscard]] bool ready();
  /// UCS_OK, or how the wire-up or the connection failed.
  [[nodiscard]] ucs_status_t error() const { return error_; }

  /// Refuses an endpoint that uses any transport other than the RDMA hardware's.
  [[nodiscard]] Result<void> check_lanes() const;

  [[nodiscard]] Result<UcxRkey> unpack(const std::string& packed) const;
  [[nodiscard]] ucp_ep_h handle() const { return handle_; }

  /// Starts the force close: all requests in flight end soon. Idempotent.
  void start_close();
  /// Whether it has ended.
  [[nodiscard]] bool closed();

 private:
  explicit UcxEndpoint(UcxContext& context) : context_(context) {}

  UcxContext& context_;
  ucp_ep_h handle_ = nullptr;  ///< null once closing
  void* connecting_ = nullptr;
  void* closing_ = nullptr;
  ucs_status_t error_ = UCS_OK;
};

/// Whether a failure is that nothing came back: no peer, or no way to it. Else the peer's device
/// has refused something, or the peer has ended the connection.
[[nodiscard]] inline bool nothing_answers(ucs_status_t status) {
  return status == UCS_ERR_ENDPOINT_TIMEOUT || status == UCS_ERR_UNREACHABLE;
}

/// Reads one byte at `address` into `scratch`, one byte of registered memory, and waits for it.
/// @return kPermissionDenied where the target's device refuses; kUnavailable; kDeadline. After a
/// failure the endpoint cannot be used.
struct UcxTrial {
  std::byte* scratch = nullptr;
  ucp_mem_h scratch_memory = nullptr;
  std::uint64_t address = 0;
  ucp_rkey_h key = nullptr;
};
[[nodiscard]] Result<void> try_key(UcxContext& context, UcxEndpoint& endpoint,
                                   const UcxTrial& trial, const Clock& clock, TimePoint deadline);

}  // namespace ho::transport
