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
  Wear wear;
  std::uint64_t write_bytes_per_day_max = 0;  ///< 0: no budget
  bool broken = false;                        ///< readable, takes no durable change
  std::string broken_why;                     ///< in words; empty where it is not
};

/// One path of a store in use: what lies on it, its log, its write budget.
/// Owner: the store's thread; neither copied nor moved, as the journal refers to the volume.
class StorePath {
 public:
  StorePath(Device& device, Volume&& recovered, const Journal::Options& options,
            std::uint64_t write_bytes_per_day_max);
  StorePath(const StorePath&) = delete;
  StorePath& operator=(const StorePath&) = delete;

  Volume volume;
  Journal journal;
  WriteBudget budget;
  /// Writes to other places and frees of durable extents under way: blocks come free with each.
  std::uint64_t freeing = 0;

  void set_day(std::uint32_t day) { day_ = day; }
  void count_written(std::uint64_t bytes) { volume.count_written(bytes, day_); }
  /// Starts what the journal can start.
  void step() { journal.step(day_); }
  /// Whether the budget of the day lets so much in. @return as WriteBudget::check(), with the
  /// path's name.
  [[nodiscard]] Result<void> check_budget(const WriteNeed& need) const;
  /// Whether a shard of so many blocks has room here. @return kExhausted; kIo: the log is broken.
  [[nodiscard]] Result<void> check_room(Policy policy, std::uint64_t blocks) const;

  /// Takes blocks for a shard; check_room() let it in. The log knows nothing of it yet.
  Shard& make_shard(const ExtentInfo& info, std::uint64_t blocks);
  /// Gives the blocks of a shard back that the log does not know, if there is one.
  void drop_shard(ExtentId extent);
  /// A durable shard is being freed: the next may have its room in the log.
  void forget_durable(const Shard& shard);

  /// See ExtentStore::tend_logs().
  void tend(TimePoint now);
  /// Whether the log says that all it holds is safe, or cannot say anything any more.
  [[nodiscard]] bool sealed() const { return !journal.open_ended() || journal.broken(); }
  [[nodiscard]] PathStatus status() const;
  /// Every block has one owner or is free. @param at_rest  nothing is under way. Cost: all blocks.
  void check_space(bool at_rest) const;

  static constexpr auto kSealAfter = std::chrono::milliseconds(100);
  static constexpr auto kSaveWearAfter = std::chrono::seconds(5);

 private:
  void count_durable(const Shard& shard);
  [[nodiscard]] Wear wear_today() const;

  std::uint32_t day_ = 0;  ///< days since 1970, UTC
  std::uint64_t durable_extents_ = 0;
  std::uint64_t durable_blocks_ = 0;
  std::uint64_t write_frames_seen_ = 0;  ///< of the journal, as tend() last saw them
  TimePoint write_frames_since_;
  std::uint64_t unsaved_wear_seen_ = 0;
  TimePoint wear_saved_;  ///< when a frame was last seen to have taken the counters down
};

}  // namespace ho::flash
