#pragma once

#include <cstdint>
#include <vector>

namespace ho::analyzer {

/// The taker of the room that a value on the device gave.
enum class RoomFor : std::uint8_t {
  kOp,         ///< an op, for its outputs
  kFetch,      ///< a value that comes back
  kVariation,  ///< nobody: a search fixed that the gap is spent away
  kSupplied,   ///< nobody: an INPUT, which each step finds at home
};

/// Why a gap is spent off the device, written while the step is played. Times are those of the
/// play; positions count from the begin of the gap's step. A value.
struct MoveReason {
  static constexpr std::uint32_t kNone = UINT32_MAX;
  static constexpr std::int64_t kUnknown = -1;

  std::uint32_t gap = kNone;

  // The room.
  RoomFor room_for = RoomFor::kSupplied;
  std::uint32_t for_storage = kNone;  ///< the value that came back; kNone: an op asked
  std::int64_t for_position = 0;      ///< the op that asked, or that uses the value
  std::int64_t asked_bytes = 0;
  std::int64_t short_bytes = 0;  ///< the part that was not free when the value left
  std::int64_t waited_ns = 0;    ///< how long the op waited for room alone

  // The others that could have left.
  std::uint32_t next_best = kNone;  ///< with a valid copy, and the next use before this one's
  std::int64_t next_best_use = 0;
  std::uint32_t unsaved = kNone;  ///< used later than this one, but without a valid copy
  std::int64_t unsaved_use = 0;
  std::int64_t unsaved_ns = 0;  ///< how much later its write-back would have ended

  // The write-back.
  std::int64_t copy_age_ns = kUnknown;  ///< valid for so long when it left; kUnknown: none needed
  bool stored_in_use = false;           ///< it began before the value was idle: the link was free

  // The fetch.
  bool fetch_early = false;               ///< before its latest start, in room that was left over
  bool fetch_put_off = false;             ///< then to its latest start, for room to pack in
  std::int64_t fetch_gate = 0;            ///< position of its latest start
  std::int64_t link_slack_ns = kUnknown;  ///< from its end, if begun there, to its use
  std::int64_t arrived_before_ns = 0;     ///< so long before its use
  std::int64_t fetch_waited_ns = 0;       ///< how long the op waited for it

  // Below the device.
  bool from_flash = false;
  std::uint32_t slot_for =
      kNone;  ///< the storage that took its room in local DDR; kNone: there never was any
};

/// Why a gap in which a storage could leave is spent on the device.
enum class StayCause : std::uint8_t {
  kNone,       ///< it is not, or there was no choice
  kNotAsked,   ///< it might have left; the room that others asked for came from elsewhere
  kNotNeeded,  ///< it did not leave in an earlier pass
  kDivided,    ///< it did not leave in the plan by which the homes were divided
  kWaitedFor,  ///< an op waited for its fetch in an earlier pass longer than for any other
  kRoomLeft,   ///< the last pass found so much room left beside all that leaves
  kSmall,      ///< the smallest storages are not worth a transfer
  kVariation,  ///< a search fixed it
};
struct StayReason {
  StayCause cause = StayCause::kNone;
  std::uint8_t pass = 0;      ///< that decided it
  std::int64_t quantity = 0;  ///< kWaitedFor: ns; kRoomLeft, kSmall: bytes
};

/// Which pass over the step made the last decision.
enum class PassKind : std::uint8_t { kLearning, kAvoidsWait, kFewestBytes };
struct DecidedBy {
  int series = 0;  ///< from 1; 0: the simplest plan
  int pass = 0;    ///< of that series, from 1
  PassKind kind = PassKind::kLearning;
  bool varied = false;  ///< single gaps were fixed by a search
};

/// Why a home is in its tier.
enum class HomeCause : std::uint8_t {
  kNearest,
  kHint,
  kNoRoom,  ///< the nearest tier lacked room; those that move least gave way
  kLinks,   ///< the links of both tiers share what moves, which gave a shorter step
};

}  // namespace ho::analyzer
