#pragma once

#include <ucp/api/ucp.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/transport/striping/rail.hpp"
#include "common/transport/ucx/context.hpp"
#include "common/transport/ucx/endpoint.hpp"

namespace ho::transport {

class UcxConnection;

/// One piece of an operation. Owned by the caller, lent to the connection until it comes back.
struct UcxPiece {
  std::uint32_t flight = 0;  ///< the caller's number for the operation
  std::uint32_t length_bytes = 0;
  std::uint8_t waits_for = 0;    ///< ends still to come: its own, and of the flush behind it
  ucs_status_t status = UCS_OK;  ///< how it ended; the first of several failures
  UcxPiece* next = nullptr;      ///< used by the connection
  UcxConnection* of = nullptr;   ///< likewise
};

/// An endpoint serves pieces in order. So small operations have their own, and do not wait behind
/// megabytes.
inline constexpr std::size_t kUcxLanes = 2;

/// A remote key unpacked for each lane's endpoint; by LaneKind.
using UcxKeys = std::array<UcxRkey, kUcxLanes>;

/// Endpoints to one worker of a target: one a lane, and one to try keys on. Owner thread: the
/// transport's.
///
/// UCX completes a put when its source may be reused. The put is visible at the target when a later
/// flush has ended. So call flush() after each batch of puts; it covers those posted before it.
class UcxConnection {
 public:
  /// Begins to connect.
  /// @param pieces_max  lent to it at a time. @return kUnavailable; kInvalidArgument.
  [[nodiscard]] static Result<std::unique_ptr<UcxConnection>> begin(UcxContext& context,
                                                                    const std::string& worker,
                                                                    std::size_t pieces_max);
  UcxConnection(const UcxConnection&) = delete;
  UcxConnection& operator=(const UcxConnection&) = delete;
  ~UcxConnection() = default;

  /// Whether the wire-up has ended, with success or not. The caller makes the context's progress.
  [[nodiscard]] bool wired();
  /// The wire-up's outcome, once it has ended. @return kUnavailable; kUnsupported: UCX would use a
  /// transport other than RDMA.
  [[nodiscard]] Result<void> outcome() const;

  /// Finds out whether the target's device accepts the key for `address`. @return
  /// kPermissionDenied; kUnavailable; kDeadline; kInvalidArgument.
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
  void get(LaneKind lane, UcxPiece& piece, const Place& place);
  void put(LaneKind lane, UcxPiece& piece, const Place& place);
  /// Flushes the puts posted so far: they end when the flush has. Cheap if there are none.
  void flush();
  /// Pieces that have ended since clear_ended(). The context's progress and every call append here.
  [[nodiscard]] const std::vector<UcxPiece*>& ended() const { return ended_; }
  void clear_ended() { ended_.clear(); }
  /// Whether the target's device has answered since the last call. What UCX only copies, as small
  /// puts, does not count.
  [[nodiscard]] bool answered() { return std::exchange(answered_, false); }

  /// Why it is over; nothing: it is not. kPermissionDenied: the target's device refused an access,
  /// or the target has ended its side; kUnavailable: anything else.
  [[nodiscard]] std::optional<Error> failure() const;
  /// Closes by force: every piece in flight ends soon, with a failure unless it had ended.
  void start_close();
  /// Whether no piece and no endpoint is left. Until then pieces may still come back.
  [[nodiscard]] bool closed();

 private:
  /// One flush under way and the puts that it covers.
  struct Flush {
    UcxConnection* of = nullptr;  ///< null: none
    UcxPiece* first = nullptr;
  };
  struct Lane {
    UcxPiece* unflushed = nullptr;
    /// Several, so that puts posted after a flush get theirs before the first one ends.
    std::array<Flush, 4> flushes;
    /// Last member, so destroyed first: while it closes, its requests still end.
    std::unique_ptr<UcxEndpoint> endpoint;
  };

  UcxConnection(UcxContext& context, std::string worker, std::size_t pieces_max)
      : context_(context), worker_(std::move(worker)) {
    ended_.reserve(pieces_max);
  }
  [[nodiscard]] Result<void> connect_trial(const Clock& clock, TimePoint deadline);
  [[nodiscard]] static ucp_request_param_t parameters_of(UcxPiece& piece, const Place& place);
  void part_ended(UcxPiece& piece, ucs_status_t status);
  void flush_ended(Flush& flush, ucs_status_t status);
  void flush(Lane& lane);
  [[nodiscard]] Lane& at(LaneKind lane) { return lanes_[static_cast<std::size_t>(lane)]; }

  UcxContext& context_;
  std::string worker_;
  std::vector<UcxPiece*> ended_;
  ucs_status_t status_ = UCS_OK;  ///< the first failure of a piece
  bool answered_ = false;
  std::unique_ptr<UcxEndpoint> trial_;  ///< nullptr: not yet, or a trial cost it
  std::array<Lane, kUcxLanes> lanes_;
};

}  // namespace ho::transport
