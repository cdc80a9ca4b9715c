#include "tools/analyzer/plan/room_search.hpp"

#include <algorithm>

#include "common/base/check.hpp"

namespace ho::analyzer {
namespace {

/// A room this near to one that is too large is not searched further.
constexpr std::int64_t kNearPermille = 2;
/// The share of the bytes by which packing exceeded the budget that the next room is smaller by.
/// With slightly less to place, packing often finds the rest itself.
constexpr std::int64_t kHeldPercent = 45;
constexpr std::int64_t kHeldLeast = 1024;  ///< and at least the budget over this

}  // namespace

RoomSearch::RoomSearch(std::uint64_t budget_bytes, std::size_t positions, int local_tries)
    : budget_bytes_(static_cast<std::int64_t>(budget_bytes)),
      local_tries_(local_tries),
      room_(positions, budget_bytes_) {}

void RoomSearch::hold_back(const std::vector<std::int64_t>& over_bytes) {
  const auto held = [&](std::int64_t over) {
    return over / 100 * kHeldPercent + budget_bytes_ / kHeldLeast;
  };
  if (local_tries_-- <= 0) {
    held_bytes_ += held(*std::max_element(over_bytes.begin(), over_bytes.end()));
  }
  for (std::size_t p = 0; p < room_.size(); ++p) {
    if (over_bytes[p] > 0) room_[p] -= held(over_bytes[p]);
    room_[p] = std::min(room_[p], budget_bytes_ - held_bytes_);
  }
}

bool RoomSearch::next(const std::vector<std::int64_t>& over_bytes) {
  if (over_bytes.empty()) {
    fits_ = room_;
    if (too_large_.empty()) return false;
  } else {
    HO_CHECK(over_bytes.size() == room_.size());
    too_large_ = room_;
  }
  if (fits_.empty()) {
    hold_back(over_bytes);
    return true;
  }
  std::int64_t apart_bytes = 0;
  for (std::size_t p = 0; p < room_.size(); ++p) {
    apart_bytes = std::max(apart_bytes, too_large_[p] - fits_[p]);
    room_[p] = fits_[p] + (too_large_[p] - fits_[p]) / 2;
  }
  return apart_bytes > budget_bytes_ / 1000 * kNearPermille;
}

}  // namespace ho::analyzer
