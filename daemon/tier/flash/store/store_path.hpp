#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "daemon/tier/flash/log/journal.hpp"
#include "daemon/tier/flash/log/recover.hpp"
#include "daemon/tier/flash/log/table.hpp"
#include "daemon/tier/flash/store/write_budget.hpp"

namespace ho::flash {

struct PathStatus {
  std::string name;
  std::uint64_t capacity_bytes = 0;  ///< for data
  std::uint64_t free_bytes = 0;
  std::uint64_t unused_bytes = 0;  ///< that the path has grown by since it was formatted
  Wear wear;
  std::uint64_t write_bytes_per_day_max = 0;  ///< 0: no budget
  bool broken = false;                        ///< readable, but accepts no durable change
  std::string broken_why;                     ///< the reason; empty if not broken
  bool encrypted = false;
};

/// One path of a store in use: its contents, its log and its write budget. Owner: the store's
/// thread. Neither copied nor moved, since the journal refers to the volume.
class StorePath {
 public:
  StorePath(Device& device, Volume&& recovered, const Journal::Options& options,
            std::uint64_t write_bytes_per_day_max);
  StorePath(const StorePath&) = delete;
  StorePath& operator=(const StorePath&) = delete;

  Volume volume;
  Journal journal;
  WriteBudget budget;
  /// Number of durable writes to new places and of frees in flight; each will free blocks.
  std::uint64_t freeing = 0;

  void set_day(std::uint32_t day) { day_ = day; }
  void count_written(std::uint64_t bytes) { volume.count_written(bytes, day_); }
  /// Starts what the journal can start.
  void step() { journal.step(day_); }
  /// Whether the budget of the day allows this. @return as WriteBudget::check(), with the name of
  /// the path.
  [[nodiscard]] Result<void> check_budget(const WriteNeed& need) const;
  /// Whether a shard of this many blocks has room. @return kExhausted; kIo: the log is broken.
  [[nodiscard]] Result<void> check_room(Policy policy, std::uint64_t blocks) const;

  /// Takes blocks for a shard that check_room() accepted. It is not in the log yet.
  Shard& make_shard(const ExtentInfo& info, std::uint64_t blocks);
  /// Returns the blocks of a shard that is not in the log, if there is one.
  void drop_shard(ExtentId extent);
  /// A durable shard is being freed: the next may use its room in the log.
  void forget_durable(const Shard& shard);

  /// See ExtentStore::tend_logs().
  void tend(TimePoint now);
  /// Whether the log records that all its contents are durable, or is broken.
  [[nodiscard]] bool sealed() const { return !journal.open_ended() || journal.broken(); }
  [[nodiscard]] PathStatus status() const;
  /// Checks that every block is free or has one owner. @param at_rest  nothing is in flight. Cost:
  /// all blocks.
  void check_space(bool at_rest) const;

  static constexpr auto kSealAfter = std::chrono::milliseconds(100);
  static constexpr auto kSaveWearAfter = std::chrono::seconds(5);

 private:
  void count_durable(const Shard& shard);
  [[nodiscard]] Wear wear_today() const;

  std::uint32_t day_ = 0;  ///< days since 1970, UTC
  std::uint64_t durable_extents_ = 0;
  std::uint64_t durable_blocks_ = 0;
  std::uint64_t write_frames_seen_ = 0;  ///< frames of the journal at the last tend()
  TimePoint write_frames_since_;
  std::uint64_t unsaved_wear_seen_ = 0;
  TimePoint wear_saved_;  ///< when a frame last had the wear counters
};

}  // namespace ho::flash
