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

/// Counts what went wrong by cause, and logs a cause the first time and then at most once a minute:
/// whoever causes it again and again must not fill the log. Any thread; a mutex, since it is for
/// what should not happen. Causes beyond kCausesMax are counted together.
class Tally {
 public:
  static constexpr std::size_t kCausesMax = 64;
  static constexpr Duration kQuiet = std::chrono::minutes(1);

  struct Entry {
    std::string cause;
    std::uint64_t count = 0;
  };

  /// `clock` outlives it. `what` begins each line.
  Tally(std::string what, const Clock& clock) : what_(std::move(what)), clock_(clock) {}

  /// `cause` is one of few texts of our own; `detail` may say anything and is logged only.
  void note(std::string_view cause, std::string_view detail);
  /// By cause.
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
