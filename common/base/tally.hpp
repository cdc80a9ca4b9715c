#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.hpp"

namespace ho {

/// Counts failures by cause. Logs a cause at its first occurrence and then at most once a minute,
/// so that a repeated failure cannot fill the log. Further causes beyond kCausesMax share one
/// count, "other". Any thread. Uses a mutex, since failures are rare.
class Tally {
 public:
  static constexpr std::size_t kCausesMax = 64;
  static constexpr Duration kQuiet = std::chrono::minutes(1);

  struct Entry {
    std::string cause;
    std::uint64_t count = 0;
  };

  /// `clock` must outlive this object. Each log line starts with `what`.
  Tally(std::string what, const Clock& clock) : what_(std::move(what)), clock_(clock) {}

  /// Counts one failure. `cause` is one of few fixed texts; `detail` may be any text and is only
  /// logged.
  void note(std::string_view cause, std::string_view detail);
  /// All counts, sorted by cause.
  [[nodiscard]] std::vector<Entry> entries() const;

 private:
  struct Kept {
    std::uint64_t count = 0;
    TimePoint logged;
  };

  const std::string what_;
  const Clock& clock_;
  mutable std::mutex mutex_;
  std::map<std::string, Kept, std::less<>> causes_;
};

}  // namespace ho
