#pragma once

#include <ucp/api/ucp.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/transport/ucx/context.hpp"
#include "common/transport/ucx/endpoint.hpp"

namespace ho::transport {

/// One piece of an operation. Owned by the caller, lent to the connection until it comes back.
struct UcxPiece {
  std::uint32_t slot = 0;
  std::uint32_t length_bytes = 0;
  std::uint8_t waits_for = 0;    ///< of: its own end, the flush behind it
  ucs_status_t status = UCS_OK;  ///< how it ended; of several failures the first
  UcxPiece* next = nullptr;      ///< the connection's
  std::vector<UcxPiece*>* ended = nullptr;
};

/// Endpoints to one target: one for operations, one to try keys on. Owner thread: the transport's.
///
/// A put of UCX's ends when its source may be reused; it is visible at the target once a flush
/// behind it has ended. So flush() follows each batch of puts, and covers those posted before it.
class UcxConnection {
 public:
  /// Connects. Pieces that end are appended to `ended`, which has room for all of them, from inside
  /// post(), flush() and the context's progress. @return kUnavailable; kDeadline; kUnsupported.
  [[nodiscard]] static Result<std::unique_ptr<UcxConnection>> create(UcxContext& context,
                                                                     const std::string& worker,
                                                                     const Clock& clock,
                                                                     TimePoint deadline,
                                                                     std::vector<UcxPiece*>& ended);

  /// Finds out whether the target's device takes the key for `address`. @return kPermissionDenied;
  /// kUnavailable; kDeadline; kInvalidArgument.
  struct KeyTrial {
    std::string packed;
    std::uint64_t address = 0;
    std::byte* scratch = nullptr;
    ucp_mem_h scratch_memory = nullptr;
  };
  [[nodiscard]] Result<void> try_key(const KeyTrial& trial, const Clock& clock, TimePoint deadline);

  [[nodiscard]] Result<UcxRkey> unpack(const std::string& packed) const {
    return main_->unpack(packed);
  }

  struct Place {
    std::byte* local = nullptr;
    ucp_mem_h memory = nullptr;
    std::uint64_t remote = 0;
    ucp_rkey_h key = nullptr;
  };
  void get(UcxPiece& piece, const Place& place);
  void put(UcxPiece& piece, const Place& place);
  /// Makes the puts so far end. Cheap where there are none.
  void flush();

  [[nodiscard]] bool failed() const { return main_->error() != UCS_OK; }
  /// Lets every piece in flight end soon, with a failure unless it had ended.
  void start_close();
  /// Whether no piece and no endpoint is left. Before, pieces may still come back.
  [[nodiscard]] bool closed();

 private:
  /// One flush under way and the puts that it covers.
  struct Flush {
    bool active = false;
    UcxPiece* first = nullptr;
  };

  UcxConnection(UcxContext& context, std::string worker)
      : context_(context), worker_(std::move(worker)) {}
  [[nodiscard]] Result<void> reach(const Clock& clock, TimePoint deadline);
  [[nodiscard]] static ucp_request_param_t parameters_of(UcxPiece& piece, const Place& place);
  static void part_ended(UcxPiece& piece, ucs_status_t status);
  static void flush_ended(Flush& flush, ucs_status_t status);

  UcxContext& context_;
  std::string worker_;
  std::vector<UcxPiece*>* ended_ = nullptr;
  UcxPiece* unflushed_ = nullptr;
  bool wired_ = false;  ///< main_'s wire-up was begun
  /// Several, so that puts posted behind a flush need not wait for its end to get theirs.
  std::array<Flush, 4> flushes_;
  std::unique_ptr<UcxEndpoint> scout_;
  /// Last, so that it goes first: while it closes, its requests still end.
  std::unique_ptr<UcxEndpoint> main_;
};

}  // namespace ho::transport
