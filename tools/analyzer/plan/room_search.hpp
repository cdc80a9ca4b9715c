#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ho::analyzer {

/// The room on the device to play a step with, per position. Packing wastes some of the budget, so
/// a plan is played with less where its blocks end above the budget; then with a room between that
/// of a plan that fits and that of one that does not. A value.
class RoomSearch {
 public:
  /// @param local_tries  so often room is held back only where packing lacks it, then everywhere
  RoomSearch(std::uint64_t budget_bytes, std::size_t positions, int local_tries);

  [[nodiscard]] const std::vector<std::int64_t>& room_bytes() const { return room_; }

  /// @param over_bytes  of the plan for this room, per position (Draft); empty: it fits
  /// @return whether another room is worth a try.
  bool next(const std::vector<std::int64_t>& over_bytes);

 private:
  void hold_back(const std::vector<std::int64_t>& over_bytes);

  std::int64_t budget_bytes_;
  int local_tries_;
  std::int64_t held_bytes_ = 0;  ///< everywhere
  std::vector<std::int64_t> room_;
  std::vector<std::int64_t> fits_;       ///< empty: none yet
  std::vector<std::int64_t> too_large_;  ///< empty: none yet
};

}  // namespace ho::analyzer
