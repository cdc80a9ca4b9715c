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
#include "common/transport/striping/lane_loads.hpp"
#include "common/transport/ucx/context.hpp"
#include "common/transport/ucx/endpoint.hpp"

namespace ho::transport {

class UcxRails;

/// One piece of an operation. Owned by the caller, lent to the connection until it comes back.
struct UcxPiece {
  /// The slot of a piece that belongs to no operation: a read that tests whether a rail is alive.
  static constexpr std::uint32_t kNoSlot = UINT32_MAX;

  std::uint32_t slot = kNoSlot;
  std::uint32_t length_bytes = 0;
  std::uint64_t offset_bytes = 0;  ///< in its operation
  UcxRails* rails = nullptr;       ///< the rails it was posted on
  std::uint32_t lane = 0;          ///< on which of their lanes
  std::uint8_t waits_for = 0;      ///< ends still to come: its own, and of the flush behind it
  ucs_status_t status = UCS_OK;    ///< how it ended; the first of several failures
  UcxPiece* next = nullptr;        ///< used by the connection
  std::vector<UcxPiece*>* ended = nullptr;
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
  /// Begins to connect. get(), put(), flush(), start_close() and the context's progress append
  /// pieces that end to `ended`, which has room for all of them.
  /// @return kUnavailable; kInvalidArgument.
  [[nodiscard]] static Result<std::unique_ptr<UcxConnection>> begin(UcxContext& context,
                                                                    const std::string& worker,
                                                                    std::vector<UcxPiece*>& ended);
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

  [[nodiscard]] bool failed() const;
  /// Closes by force: every piece in flight ends soon, with a failure unless it had ended.
  void start_close();
  /// Whether no piece and no endpoint is left. Until then pieces may still come back.
  [[nodiscard]] bool closed();

 private:
  /// One flush under way and the puts that it covers.
  struct Flush {
    bool active = false;
    UcxPiece* first = nullptr;
  };
  struct Lane {
    UcxPiece* unflushed = nullptr;
    /// Several, so that puts posted after a flush get theirs before the first one ends.
    std::array<Flush, 4> flushes;
    /// Last member, so destroyed first: while it closes, its requests still end.
    std::unique_ptr<UcxEndpoint> endpoint;
  };

  UcxConnection(UcxContext& context, std::string worker)
      : context_(context), worker_(std::move(worker)) {}
  [[nodiscard]] Result<void> send_scout(const Clock& clock, TimePoint deadline);
  [[nodiscard]] static ucp_request_param_t parameters_of(UcxPiece& piece, const Place& place);
  static void part_ended(UcxPiece& piece, ucs_status_t status);
  static void flush_ended(Flush& flush, ucs_status_t status);
  static void flush(Lane& lane);
  [[nodiscard]] Lane& at(LaneKind lane) { return lanes_[static_cast<std::size_t>(lane)]; }

  UcxContext& context_;
  std::string worker_;
  std::vector<UcxPiece*>* ended_ = nullptr;
  std::unique_ptr<UcxEndpoint> scout_;  ///< nullptr: not yet, or a trial cost it
  std::array<Lane, kUcxLanes> lanes_;
};

}  // namespace ho::transport
