#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/clock.hpp"

namespace ho {

/// Counts refusals by cause. Logs a cause at its first occurrence and then at most once a minute
/// for each owner, so that a repeated one cannot fill the log, nor hide another user's. Further
/// causes beyond kCausesMax share one count, "other"; owners beyond kLoggedMax share one line a
/// minute. Any thread. Uses a mutex, since refusals are rare.
class Tally {
 public:
  static constexpr std::size_t kCausesMax = 64;
  static constexpr std::size_t kLoggedMax = 1024;  ///< causes and owners of the last minute
  static constexpr Duration kQuiet = std::chrono::minutes(1);

  struct Entry {
    std::string cause;
    std::uint64_t count = 0;
  };

  /// `clock` must outlive this object. Each log line starts with `what`.
  Tally(std::string what, const Clock& clock) : what_(std::move(what)), clock_(clock) {}

  /// The one that was refused. Both are only logged.
  struct Who {
    std::string_view owner;  ///< a user or certificate; empty: unknown
    std::string_view peer;   ///< a process or host
  };
  /// Counts one. `cause` is one of few fixed texts; `detail` may be any text and is only logged.
  void note(std::string_view cause, std::string_view detail) { note(cause, detail, {}); }
  void note(std::string_view cause, std::string_view detail, const Who& who);
  /// All counts, sorted by cause.
  [[nodiscard]] std::vector<Entry> entries() const;

 private:
  [[nodiscard]] bool may_log(const std::string& cause, std::string_view owner);

  const std::string what_;
  const Clock& clock_;
  mutable std::mutex mutex_;
  std::map<std::string, std::uint64_t, std::less<>> causes_;
  std::map<std::pair<std::string, std::string>, TimePoint> logged_;  ///< by cause and owner
};

}  // namespace ho
