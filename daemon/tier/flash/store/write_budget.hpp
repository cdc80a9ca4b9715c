#pragma once

#include <cstdint>

#include "common/base/result.hpp"

namespace ho::flash {

/// An upper bound for the bytes that a change may still write to one path.
struct WriteNeed {
  std::uint64_t data_bytes = 0;
  std::uint64_t frame_bytes = 0;  ///< frames in one copy of the log

  [[nodiscard]] bool none() const { return data_bytes == 0 && frame_bytes == 0; }
};

/// How full the log of a path is; this determines the cost of further frames.
struct LogFill {
  std::uint64_t area_bytes = 0;
  std::uint64_t frame_bytes_max = 0;
  std::uint64_t head_bytes = 0;   ///< end of the frames in the current area
  std::uint64_t table_bytes = 0;  ///< upper bound for a snapshot of the table, as frames
  bool begins_log = false;        ///< a new log comes before any other frame
};

/// Limits the bytes written to one path per day, log included. Admitted changes that are not
/// written yet count as promised; once written, they are in the path's wear counters. Pure. Owner:
/// the store's thread.
class WriteBudget {
 public:
  /// @param bytes_per_day_max  0: no budget, everything is admitted
  explicit WriteBudget(std::uint64_t bytes_per_day_max) : bytes_per_day_max_(bytes_per_day_max) {}

  [[nodiscard]] std::uint64_t bytes_per_day_max() const { return bytes_per_day_max_; }

  /// Checks whether a change can be written today, with its log, beside everything that is
  /// promised.
  /// @param written_bytes  today, from the wear counters
  /// @return kBusy: only promises, or a log that is being begun, prevent it, and those end;
  /// kExhausted: not today.
  [[nodiscard]] Result<void> check(const WriteNeed& need, std::uint64_t written_bytes,
                                   const LogFill& log) const;
  void promise(const WriteNeed& need);
  /// Ends a promise or a part of it: the bytes were written, or will not be.
  void settle(const WriteNeed& need);

 private:
  std::uint64_t bytes_per_day_max_;
  WriteNeed promised_;
};

}  // namespace ho::flash
