#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "client/replay/executor.hpp"
#include "client/transfer/arena_map.hpp"
#include "client/transfer/mover.hpp"
#include "common/base/result.hpp"
#include "common/base/units.hpp"
#include "common/schedule/schedule.hpp"

namespace ho::client {

/// What a replay moves bytes between.
struct ReplayMemory {
  std::span<std::byte> device;  ///< the arena; at least the schedule's arena_bytes
  LocalHandles device_handles;
  const ArenaMap* local_ddr = nullptr;  ///< home arenas; outlive the replay
  const ArenaMap* remote_ddr = nullptr;
  /// By storage: where what has its home on flash lies. Used in create() only.
  std::span<const std::optional<FlashPlace>> flash = {};
  /// Bytes of a staging slot that must have arrived before they are moved on.
  std::uint64_t stage_chunk_bytes = 4 * kMiB;
};

/// Why a replay stopped.
struct ReplayFailure {
  Errc code = Errc::kUnavailable;
  NodeIndex node;
  std::vector<StorageIndex> storages;  ///< whose transfers failed; at most kNamedStoragesMax
};

/// Binds an executor to a mover: turns ready cache ops into transfers and their outcomes back into
/// events. Bytes that pass through a staging slot move in chunks (chunk_stages()). Records when
/// each op ran. Time comes as plain ticks of the caller's clock.
///
/// Owner: the transfer thread (the simulation in tests), like its mover. Allocates in create() only
/// (and once when it fails). It is wrong to destroy it while transfers are in flight.
class Replay {
 public:
  static constexpr std::size_t kNamedStoragesMax = 8;
  /// Steps whose times are kept: the running one's neighbours still move bytes.
  static constexpr std::uint64_t kStepsKept = 4;

  struct Span {
    std::uint64_t queued_ticks = 0;  ///< it could start, and was handed to the mover
    std::uint64_t start_ticks = 0;   ///< its first piece was sent
    std::uint64_t end_ticks = 0;
    std::uint64_t bytes = 0;  ///< moved: of one dropped in part, what came before
  };

  /// `owner` is what this replay's transfers carry. @return what Executor::create() refuses;
  /// kInvalidArgument where a transfer leaves its arena or home, or would cross nodes.
  [[nodiscard]] static Result<Replay> create(const schedule::Schedule& schedule,
                                             const ReplayMemory& memory, std::uint32_t owner);

  [[nodiscard]] Executor& executor() { return executor_; }
  [[nodiscard]] const Executor& executor() const { return executor_; }

  /// Hands ready transfers to the mover while it takes them. @return how many were started.
  std::size_t pump(Mover& mover, std::uint64_t now_ticks);

  /// No further step comes: the executor's begin_epilogue(), and what only a next step would read
  /// leaves the mover where nothing of it has been sent.
  [[nodiscard]] Result<void> begin_epilogue(Mover& mover);

  /// One of this replay's transfers ended.
  void transfer_done(const TransferDone& done, std::uint64_t now_ticks);

  /// Stops it from outside: a node it depends on is lost.
  void fail(Errc code, NodeIndex node);
  /// What the mover has not sent of this replay's transfers is not sent any more.
  void cancel(Mover& mover) { mover.cancel(owner_); }

  [[nodiscard]] const std::optional<ReplayFailure>& failure() const { return failure_; }
  /// Transfers handed to the mover that have not come back.
  [[nodiscard]] std::size_t in_flight() const { return in_flight_; }
  /// Nothing moves and nothing can start before the job goes on.
  [[nodiscard]] bool quiet() const { return in_flight_ == 0 && !executor_.has_ready(); }

  [[nodiscard]] std::uint64_t prefetched_bytes() const { return prefetched_bytes_; }
  [[nodiscard]] std::uint64_t stored_bytes() const { return stored_bytes_; }
  [[nodiscard]] std::uint64_t staged_in_bytes() const { return staged_in_bytes_; }
  [[nodiscard]] std::uint64_t staged_out_bytes() const { return staged_out_bytes_; }
  /// Highest end offset on the device that a transfer has used.
  [[nodiscard]] std::uint64_t device_end_bytes() const { return device_end_bytes_; }
  /// When the instance of a steady cache op ran; valid once its step is retired, until kStepsKept
  /// steps later. Zeros where nothing was moved: a detach, a read that was dropped at the end.
  /// @param begin_ticks  when the step began.
  [[nodiscard]] Span span(std::uint32_t cache_op, std::uint64_t step,
                          std::uint64_t begin_ticks) const;
  /// Executor::released_by(), told as the schedule's own cache op.
  [[nodiscard]] std::optional<std::uint32_t> released_by(std::uint64_t position) const;

 private:
  /// What one cache op moves, with all looked up ahead of time.
  struct Move {
    Direction direction = Direction::kGet;
    StorageIndex storage;
    const ArenaMap* home = nullptr;  ///< null: a detach
    std::uint64_t home_offset_bytes = 0;
    std::uint64_t device_offset_bytes = 0;  ///< unused where it stages
    std::uint64_t bytes = 0;
    std::optional<FlashPlace> flash;  ///< set: it stages
  };
  struct Times {
    std::uint64_t queued_ticks = 0;
    std::uint64_t start_ticks = 0;
    std::uint64_t end_ticks = 0;
  };
  struct Flight {
    Instance instance;
    std::uint64_t queued_ticks = 0;
  };

  Replay(Executor executor, const ReplayMemory& memory, std::uint32_t owner)
      : executor_(std::move(executor)), memory_(memory), owner_(owner) {}
  [[nodiscard]] Result<void> add_moves(const schedule::Schedule& schedule,
                                       const std::vector<schedule::CacheOp>& list);
  [[nodiscard]] Result<Move> stage_of(const schedule::CacheOp& op) const;
  [[nodiscard]] const Move& move_of(const Instance& instance) const;
  [[nodiscard]] std::uint64_t positions_until(const ReadyTransfer& ready) const;

  Executor executor_;
  ReplayMemory memory_;
  std::uint32_t owner_;
  std::uint64_t positions_ = 0;  ///< per step
  std::uint64_t told_ = 0;       ///< ended positions that the mover knows of
  std::uint32_t steady_ = 0;     ///< chunks count as ops from here on
  std::uint32_t prologue_ = 0;
  std::vector<std::uint32_t> first_;  ///< chunk of each steady op; one more than there are
  std::vector<Move> moves_;           ///< steady, prologue, epilogue
  std::vector<Flight> flights_;       ///< by cookie
  std::vector<std::uint32_t> free_flights_;
  std::vector<Times> times_;  ///< ring of steps x steady chunks
  std::optional<ReplayFailure> failure_;
  std::size_t in_flight_ = 0;
  std::uint64_t prefetched_bytes_ = 0;
  std::uint64_t stored_bytes_ = 0;
  std::uint64_t staged_in_bytes_ = 0;
  std::uint64_t staged_out_bytes_ = 0;
  std::uint64_t device_end_bytes_ = 0;
};

}  // namespace ho::client
