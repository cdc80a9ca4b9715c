#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "client/transfer/arena_map.hpp"
#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/model/address.hpp"
#include "common/model/op.hpp"
#include "common/model/stage_direction.hpp"

namespace ho::client {

/// A byte of flash: of one extent on one node.
struct FlashPlace {
  NodeIndex node;
  std::uint64_t extent = 0;  ///< the daemon's number
  std::uint64_t offset_bytes = 0;
};

/// One piece moved by its node between flash and granted DDR.
struct StageOp {
  OpId op;
  StageDirection direction = StageDirection::kIn;
  FlashPlace flash;
  SegmentId segment;  ///< on the same node
  std::uint64_t segment_offset_bytes = 0;
  std::uint64_t length_bytes = 0;  ///< 1 .. op_bytes_max()
  TimePoint deadline;
};

/// Asks nodes to move bytes between their flash and this job's segments. Threads: one owner.
/// submit() and poll() do not wait. An operation is a control message, so submit() allocates; the
/// cost is negligible since pieces are MiB.
class Stager {
 public:
  virtual ~Stager() = default;

  [[nodiscard]] virtual std::uint64_t op_bytes_max() const = 0;

  /// @return accepted: one Completion with op.op will come out of poll(), at the latest by the
  /// deadline; with kBusy if the node had no room for it until then. kBusy: poll() and retry.
  /// kUnavailable: the node is lost. On an error nothing started. Until its completion the
  /// segment's range belongs to the node. An operation that ended by kDeadline may still move
  /// bytes: do not use the range again.
  [[nodiscard]] virtual Result<void> submit(const StageOp& op) = 0;
  /// Moves up to out.size() completions into `out`. @return how many were written.
  virtual std::size_t poll(std::span<Completion> out) = 0;

  /// The reason why an operation failed or was not accepted. Call it right after poll() returned
  /// it: only the latest failures are kept. Empty: not known.
  [[nodiscard]] virtual std::string explain(OpId op) const = 0;
};

}  // namespace ho::client
