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

/// The endpoints that carry operations: what is posted on one is served in order, so small ones
/// have their own and do not wait behind megabytes.
enum class UcxLane : std::uint8_t { kSmall, kLarge };
inline constexpr std::size_t kUcxLanes = 2;

/// A remote key as each lane's endpoint wants it; by UcxLane.
using UcxKeys = std::array<UcxRkey, kUcxLanes>;

/// Endpoints to one target: the lanes, and one to try keys on. Owner thread: the transport's.
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

  [[nodiscard]] Result<UcxKeys> unpack(const std::string& packed) const;

  struct Place {
    std::byte* local = nullptr;
    ucp_mem_h memory = nullptr;
    std::uint64_t remote = 0;
    ucp_rkey_h key = nullptr;  ///< the lane's
  };
  void get(UcxLane lane, UcxPiece& piece, const Place& place);
  void put(UcxLane lane, UcxPiece& piece, const Place& place);
  /// Makes the puts so far end. Cheap where there are none.
  void flush();

  [[nodiscard]] bool failed() const;
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
  struct Lane {
    UcxPiece* unflushed = nullptr;
    /// Several, so that puts posted behind a flush need not wait for its end to get theirs.
    std::array<Flush, 4> flushes;
    /// Last, so that it goes first: while it closes, its requests still end.
    std::unique_ptr<UcxEndpoint> endpoint;
  };

  UcxConnection(UcxContext& context, std::string worker)
      : context_(context), worker_(std::move(worker)) {}
  [[nodiscard]] Result<void> reach(const Clock& clock, TimePoint deadline);
  [[nodiscard]] static ucp_request_param_t parameters_of(UcxPiece& piece, const Place& place);
  static void part_ended(UcxPiece& piece, ucs_status_t status);
  static void flush_ended(Flush& flush, ucs_status_t status);
  static void flush(Lane& lane);
  [[nodiscard]] Lane& at(UcxLane lane) { return lanes_[static_cast<std::size_t>(lane)]; }

  UcxContext& context_;
  std::string worker_;
  std::vector<UcxPiece*>* ended_ = nullptr;
  bool wired_ = false;  ///< the lanes' wire-up was begun
  std::unique_ptr<UcxEndpoint> scout_;
  std::array<Lane, kUcxLanes> lanes_;
};

}  // namespace ho::transport
