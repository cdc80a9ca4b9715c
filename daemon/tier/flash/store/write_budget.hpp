#pragma once

#include <cstdint>

#include "common/base/result.hpp"

namespace ho::flash {

/// What a change may still write to one path, at most.
struct WriteNeed {
  std::uint64_t data_bytes = 0;
  std::uint64_t frame_bytes = 0;  ///< of one copy of the log's frames

  [[nodiscard]] bool none() const { return data_bytes == 0 && frame_bytes == 0; }
};

/// How full a path's log is, which says what further frames cost.
struct LogFill {
  std::uint64_t area_bytes = 0;
  std::uint64_t frame_bytes_max = 0;
  std::uint64_t head_bytes = 0;   ///< of the area that frames fill
  std::uint64_t table_bytes = 0;  ///< a snapshot of the table, as frames, at most
  bool begins_log = false;        ///< a new log comes before any other frame
};

/// The bytes a day that one path may be written, its log included. What was let in and is not
/// written yet is promised; once it is written the path's wear counters have it instead.
/// Pure. Owner: the store's thread.
class WriteBudget {
 public:
  /// @param bytes_per_day_max 0: no budget, everything is let in.
  explicit WriteBudget(std::uint64_t bytes_per_day_max) : bytes_per_day_max_(bytes_per_day_max) {}

  [[nodiscard]] std::uint64_t bytes_per_day_max() const { return bytes_per_day_max_; }

  /// Whether all this can be written today beside what is promised, with the log that it takes.
  /// @param written_bytes today, as the wear counters say.
  /// @return kBusy: only what is promised, or a log that is begun, is in its way, and that ends;
  /// kExhausted: not today.
  [[nodiscard]] Result<void> check(const WriteNeed& need, std::uint64_t written_bytes,
                                   const LogFill& log) const;
  void promise(const WriteNeed& need);
  /// Ends a promise, or a part of one: it was written, or will not be.
  void settle(const WriteNeed& need);

 private:
  std::uint64_t bytes_per_day_max_;
  WriteNeed promised_;
};

}  // namespace ho::flash
