#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "client/accel/device_streams.hpp"
#include "client/transfer/arena_map.hpp"
#include "client/transfer/stager.hpp"
#include "common/base/clock.hpp"
#include "common/base/units.hpp"
#include "common/model/op.hpp"
#include "common/transport/transport.hpp"

namespace ho::client {

/// One registered stretch of host memory: the handle each driver gave for it.
using LocalHandles = std::array<transport::LocalId, kDriversMax>;

using transport::Direction;

/// Order in which waiting transfers get the link: smaller first. Plain transfers of the job are
/// waited for now. Small ones, and those that a call such as ho_write waits for, come first; a
/// schedule's transfers come after all of them, the one needed soonest first. Schedules are
/// compared by Mover::progress(): a transfer needed in n positions is worth progress + n, so one
/// that waits becomes the most urgent in time, however old its rivals' schedules are. Bulk traffic
/// comes after all that is needed within kBulkPositions.
struct Urgency {
  static constexpr std::uint64_t kFirst = 0;
  static constexpr std::uint64_t kPlain = 1;
  static constexpr std::uint64_t kScheduled = 2;  ///< plus progress() and the positions until then
  static constexpr std::uint64_t kBulkPositions = 1000;
};

/// Transfers up to this size are small: plain ones overtake larger ones, and all have places of
/// their own, so that none waits until a large one's piece is done.
inline constexpr std::uint64_t kSmallTransferBytes = 64 * kKiB;

/// Bounds of Transfer::late_after. A value whose put is given up has one home until it is put
/// again, so puts have longer than TCP takes to repeat a lost packet (0.2 s).
inline constexpr Duration kGetLateMin = std::chrono::milliseconds(50);
inline constexpr Duration kPutLateMin = std::chrono::milliseconds(300);

/// When a move to or from an accelerator is done: when its bytes have moved, or already when its
/// copies are queued, which others then wait for on the device.
enum class DoneWhen : std::uint8_t { kMoved, kQueued };

/// One move between host memory, or an accelerator's, and an arena of the pool, or, with `flash`,
/// between that arena and flash of the nodes that hold it.
struct Transfer {
  std::uint32_t owner = 0;   ///< receives the outcome
  std::uint64_t cookie = 0;  ///< the owner's own name for it
  Direction direction = Direction::kGet;
  const ArenaMap* arena = nullptr;  ///< outlives the transfer
  std::uint64_t arena_offset_bytes = 0;
  std::byte* memory = nullptr;  ///< read only for kPut; inside `local`
  std::uint64_t bytes = 0;      ///< >= 1
  LocalHandles local;
  /// Set: `memory` is an address of this accelerator's, `local` is unused. The runtime's transfers
  /// of flash name it, too: they wait for `after`.
  DeviceStreams* streams = nullptr;
  DeviceOrder after;  ///< what must have ended on the accelerator before
  DoneWhen done_when = DoneWhen::kQueued;
  /// Set: kGet comes from there into the arena, kPut goes there; `memory` and `local` are unused.
  std::optional<FlashPlace> flash;
  transport::TrafficClass traffic = transport::TrafficClass::kDeadline;
  std::uint64_t urgency = Urgency::kPlain;  ///< bulk traffic has its own
  bool droppable = false;                   ///< drop() may end it while nothing of it was sent
  /// The owner can do without: while the node's daemon is restarted, it fails rather than waits.
  bool yields = false;
  /// Above zero: it ends with kDeadline, late, once nothing has come from its node for so long,
  /// where the driver gives its memory back (transport::Caps). Another home will do. It lies on one
  /// node.
  Duration late_after{};
};

/// How one accepted transfer ended. Exactly one per accepted transfer.
struct TransferDone {
  std::uint32_t owner = 0;
  std::uint64_t cookie = 0;
  Errc code = Errc::kOk;
  NodeIndex node;       ///< the node that failed; meaningless with kOk
  OpId failed;          ///< the piece that failed first; meaningless with kOk
  bool staged = false;  ///< it was a move between arena and flash
  /// pump()'s time when its first piece was sent, or began its time on a paced link; 0: none was.
  std::uint64_t sent_ticks = 0;
  bool dropped = false;  ///< nothing of it was moved, nor will be
  DeviceOrder order;     ///< on an accelerator: its end
  const DeviceStreams* streams = nullptr;
  bool yielded = false;  ///< it failed, but its node is not lost
  bool late = false;     ///< yielded, by Transfer::late_after; else because the daemon restarts
};

}  // namespace ho::client
