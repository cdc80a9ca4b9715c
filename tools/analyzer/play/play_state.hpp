#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <queue>
#include <utility>
#include <vector>

#include "tools/analyzer/play/play.hpp"
#include "tools/analyzer/play/play_room.hpp"
#include "tools/analyzer/play/played_step.hpp"
#include "tools/analyzer/problem/problem.hpp"

namespace ho::analyzer {

/// One pass over a step. Internal to play.cpp (the device and its links) and play_below.cpp (the
/// room in the tiers below, and flash). Run once.
///
/// Queues hold old entries as well: an entry counts only while its storage still says the same.
class Play {
 public:
  Play(const Problem& input, const PlayedStep& step, const PlayOptions& options);
  std::optional<Played> run();

 private:
  static constexpr std::uint32_t kNone = PlayedStep::kNone;
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
  /// The key of a slot whose copy nobody needs any more: given away before all others.
  static constexpr std::int64_t kSpentKey = kNever - 1;
  static constexpr std::int64_t kNoKey = std::numeric_limits<std::int64_t>::min();

  enum class Where : std::uint8_t { kNowhere, kDevice, kAway, kComing };
  enum class Queued : std::uint8_t { kNot, kIdle, kSoon };
  enum class Copy : std::uint8_t { kNone, kFilling, kValid };

  using Entry = std::pair<std::int64_t, std::uint32_t>;  ///< key, storage
  using Furthest = std::priority_queue<Entry>;
  using Nearest = std::priority_queue<Entry, std::vector<Entry>, std::greater<>>;

  /// One storage.
  struct Stay {
    Where where = Where::kNowhere;
    Queued queued = Queued::kNot;
    Copy ddr = Copy::kNone;                ///< in its slot or home in DDR
    bool on_flash = false;                 ///< flash has the value
    bool has_slot = false;                 ///< its bytes in DDR are taken
    bool has_home = false;                 ///< they are its own all the time
    bool copy_used = false;                ///< the value has left the device once
    bool droppable = false;                ///< it is among `drops_`
    std::uint32_t value = 0;               ///< counts its values
    std::uint32_t version = kHomeVersion;  ///< of its value
    std::uint32_t idle = kNone;            ///< the gap it is in, on the device
    std::uint32_t left = kNone;            ///< the gap it left in
    std::uint32_t staged = kNone;          ///< that gap, if its Prefetch needs a StageIn
    std::int64_t next = 0;                 ///< position of its next use
    std::int64_t written_at = 0;           ///< position of the op that made its value
    // Moments.
    std::int64_t left_at = 0;
    std::int64_t arrived_ns = 0;  ///< when its last fetch ended
    std::int64_t fetched_at = 0;
    std::int64_t arrived_at = 0;
    std::int64_t store_at = 0;  ///< when the Store of its value began
    std::int64_t stored_at = 0;
    std::int64_t slot_until = 0;     ///< when it lost its slot
    std::int64_t held_until = 0;     ///< ... before it was staged
    std::int64_t stage_in_at = 0;    ///< when its StageIn began
    std::int64_t stage_out_at = 0;   ///< when the StageOut of its value began
    std::int64_t staged_out_at = 0;  ///< ... and ended
    std::int64_t write_key = kNoKey;
    std::int64_t evict_key = kNoKey;
    std::int64_t stage_out_key = kNoKey;
    std::int64_t early_until = kNoKey;  ///< the gate of a StageIn that began before it
    // For the record.
    MoveReason why;              ///< for the gap it left in; positions of the whole play
    std::int64_t stored_ns = 0;  ///< when its copy became valid
    bool stored_in_use = false;
    std::uint32_t slot_for = kNone;  ///< the storage that took its slot
  };
  /// One direction of a tier's links.
  struct Lane {
    std::uint32_t storage = kNone;
    std::uint32_t value = 0;
    std::int64_t done_ns = kNever;
  };
  struct Tier {
    Nearest fetches;              ///< values in DDR
    Nearest idle;                 ///< to be written, the furthest next use first
    Nearest soon;                 ///< the same of values still in use, the one idle soonest first
    std::int64_t free_bytes = 0;  ///< for slots, beside homes that are there all the time
    Nearest spare;  ///< slots of copies that no gap needed yet, the nearest next use first
    Lane read;
    Lane write;
  };

  [[nodiscard]] std::int64_t bytes(std::uint32_t s) const {
    return static_cast<std::int64_t>(life_.bytes[s]);
  }
  /// A demand for room on the device.
  struct Request {
    RoomFor room_for = RoomFor::kVariation;
    std::uint32_t storage = kNone;  ///< that comes back
    std::int64_t position = 0;      ///< of its use, or of the op
    std::int64_t bytes = 0;
  };
  [[nodiscard]] Tier& tier_of(std::uint32_t s) { return tiers_[in_.tier_of[s]]; }
  /// Whether its Store is under way.
  [[nodiscard]] bool is_written(std::uint32_t s) const {
    return !tiers_.empty() && tiers_[in_.tier_of[s]].write.storage == s;
  }
  [[nodiscard]] static bool saved(const Stay& stay) {
    return stay.ddr == Copy::kValid || stay.on_flash;
  }

  [[nodiscard]] std::int64_t room_now() const {
    return room_bytes_[static_cast<std::size_t>(at_ % n_)];
  }
  /// The next moment.
  [[nodiscard]] std::int64_t moment() {
    const std::int64_t last = running_ ? kMoments - 1 : kOpStarts - 1;
    moment_ = std::min(moment_ + 1, last);
    return at_ * kMoments + moment_;
  }
  void begin();
  [[nodiscard]] std::uint64_t state() const;
  void end_when_settled(std::int64_t steps_done);
  void supply();
  void pass_gates();
  bool start_op();
  bool start_write(Tier& tier);
  bool start_fetch(Tier& tier);
  void finish_op();
  void finish_transfers();
  bool make_room(const Request& request, std::int64_t until);
  void leave(std::uint32_t s, const Request& request);
  void record_leave(std::uint32_t s, const Request& request);
  void record_return(Stay& stay, const Gap& gap, std::uint32_t g);
  void commit(std::uint32_t s);
  void keep(std::uint32_t s);
  void offer(std::uint32_t s);
  void idle(std::uint32_t s, std::uint32_t gap);
  void write_soon(std::uint32_t s, std::uint32_t gap);
  [[nodiscard]] bool drop_stands(const Entry& entry) const {
    return stays_[entry.second].droppable && stays_[entry.second].next == entry.first;
  }
  void unqueue(std::uint32_t s);
  void queue(std::uint32_t s, Queued as, std::int64_t key);
  [[nodiscard]] std::uint32_t front(Nearest& queue, Queued as);

  void begin_below();
  void wait_below(std::uint32_t s);
  [[nodiscard]] bool claim(std::uint32_t s, std::int64_t until);
  bool give_up_copy(Tier& tier, std::int64_t until);
  void may_spare(std::uint32_t s);
  [[nodiscard]] bool is_spare(const Stay& stay, std::uint32_t s) const;
  void release(std::uint32_t s);
  void forget_copies(std::uint32_t s);
  void requeue_below(std::uint32_t s);
  [[nodiscard]] bool spent(const Stay& stay, std::uint32_t s) const;
  [[nodiscard]] std::int64_t evict_key(const Stay& stay, std::uint32_t s) const;
  [[nodiscard]] std::int64_t stage_out_key(const Stay& stay, std::uint32_t s) const;
  bool start_stage_out();
  bool start_stage_in();
  void finish_stages();
  void end_early_stage(std::uint32_t s);
  void commit_below(const Stay& stay, const Gap& gap, std::uint32_t g, std::int64_t frame);

  const Problem& in_;
  const Lifetimes& life_;
  const PlayedStep& step_;
  const PlayOptions& options_;
  int steps_;  ///< to play
  const std::int64_t n_;
  std::vector<std::int64_t> room_bytes_;  ///< per position; no less than its op needs
  std::vector<Stay> stays_;
  std::vector<Tier> tiers_;
  Furthest drops_;      ///< idle on the device with a valid copy
  PlayRoom projected_;  ///< free beside the needed bytes, if all that may leave does
  PlayRoom proven_;     ///< free beside the bytes that the last pass needed
  Nearest early_;       ///< gates of fetches that began before
  std::int64_t early_bytes_ = 0;
  std::int64_t loose_bytes_ = 0;  ///< bytes of `drops_`
  std::int64_t used_ = 0;
  std::int64_t now_ns_ = 0;
  std::int64_t at_ = 0;  ///< position that runs or is next, counted over all steps
  bool running_ = false;
  std::int64_t op_done_ns_ = 0;
  std::int64_t last_done_ns_ = 0;
  std::int64_t lacks_room_ns_ = kNever;   ///< since when the next op waits for room alone
  std::vector<std::uint32_t> gave_room_;  ///< storages that left for it
  std::int64_t moment_ = 0;               ///< the last one of `at_`
  std::uint64_t last_state_ = 0;          ///< state() when the last step began

  std::vector<std::int64_t> last_leaves_;  ///< per version: from its write to its last gap that
                                           ///< may leave
  Lane stage_in_;
  Lane stage_out_;
  bool stage_out_void_ = false;  ///< the value of `stage_out_` is dead; its slot is still read
  bool write_blocked_ = false;   ///< an idle value waits for room in DDR
  Furthest evictions_;           ///< slots whose bytes may be given to others
  Nearest stage_outs_;
  Nearest stage_ins_;  ///< values that only flash has
  std::optional<PlayRoom> proven_slots_;
  Nearest early_stages_;
  std::int64_t early_stage_bytes_ = 0;
  std::int64_t slot_bytes_ = 0;  ///< taken in local DDR, beside homes that are there all the time
  Played out_;
};

}  // namespace ho::analyzer
