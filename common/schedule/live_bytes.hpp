#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "common/schedule/unroll.hpp"

namespace ho::schedule::proof {

/// Shows that at most `budget_bytes` are on the device at a time, in every execution, wherever they
/// lie. Each byte of the budget is handed from stay to stay: a stay that begins takes bytes of
/// stays that have ended in every execution in which it begins. If all stays find enough bytes,
/// stays that are on the device at the same time hold different bytes of the budget.
///
/// The choice of bytes is greedy: first those that the fewest others can take. So the proof can
/// fail where another choice would succeed. It never succeeds wrongly.
class LiveBytes {
 public:
  /// A key of free_at(): bytes that every later event can take.
  static constexpr std::uint32_t kFreeForAll = UINT32_MAX;

  explicit LiveBytes(std::uint64_t budget_bytes) { add(kBeforeAll, UINT32_MAX, budget_bytes); }

  /// A stay ends at `moment`: every event that starts later can take its bytes.
  void end_at(Moment moment, std::uint64_t bytes) { add(moment, UINT32_MAX, bytes); }
  /// A stay ends when `detach` completes, at `moment` at the latest: every event that waits for it,
  /// or starts at `moment` or later, can take its bytes.
  void end_by(InstanceId detach, Moment moment, std::uint64_t bytes) { add(moment, detach, bytes); }
  /// A stay begins with a transfer that waits for `waits_for`, or with an op; either starts after
  /// `moment`. @return the bytes that are missing.
  [[nodiscard]] std::uint64_t begin(std::uint64_t bytes, Moment moment,
                                    const std::vector<InstanceId>& waits_for);

  /// The free bytes at the beginning of a step, by the detach that frees them, as a distance from
  /// `first`, the first instance of that step. Equal results for two steps mean that all later
  /// steps go like the first of them.
  [[nodiscard]] std::map<std::uint32_t, std::uint64_t> free_at(Moment step_begin,
                                                               InstanceId first) const;

 private:
  struct Freed {
    InstanceId detach = UINT32_MAX;
    std::uint64_t bytes = 0;
  };
  using ByMoment = std::multimap<Moment, Freed>;

  void add(Moment moment, InstanceId detach, std::uint64_t bytes);
  [[nodiscard]] ByMoment::iterator take(ByMoment::iterator from, std::uint64_t& missing);

  ByMoment free_;  ///< by the moment from which on every event can take the bytes; none is empty
  std::unordered_map<InstanceId, ByMoment::iterator> by_detach_;
};

}  // namespace ho::schedule::proof
