#include "common/schedule/live_bytes.hpp"

#include <algorithm>
#include <iterator>

#include "common/base/check.hpp"

namespace ho::schedule::proof {

void LiveBytes::add(Moment moment, InstanceId detach, std::uint64_t bytes) {
  if (bytes == 0) return;
  const auto added = free_.emplace(moment, Freed{detach, bytes});
  if (detach == UINT32_MAX) return;
  const bool known = !by_detach_.emplace(detach, added).second;
  HO_CHECK(!known);  // a detach ends one stay
}

/// Takes what is missing from one entry. @return the entry behind it.
LiveBytes::ByMoment::iterator LiveBytes::take(ByMoment::iterator from, std::uint64_t& missing) {
  HO_CHECK(missing > 0 && from->second.bytes > 0);
  const std::uint64_t taken = std::min(missing, from->second.bytes);
  missing -= taken;
  from->second.bytes -= taken;
  if (from->second.bytes > 0) return std::next(from);
  by_detach_.erase(from->second.detach);
  return free_.erase(from);
}

std::uint64_t LiveBytes::begin(std::uint64_t bytes, Moment moment,
                               const std::vector<InstanceId>& waits_for) {
  std::uint64_t missing = bytes;
  for (const InstanceId instance : waits_for) {
    const auto freed = by_detach_.find(instance);
    if (missing > 0 && freed != by_detach_.end()) (void)take(freed->second, missing);
  }
  // The latest of those that this event can take: the fewest later events can take them.
  auto next = free_.upper_bound(moment);
  while (missing > 0 && next != free_.begin()) next = take(std::prev(next), missing);
  HO_CHECK(missing <= bytes);
  return missing;
}

std::map<std::uint32_t, std::uint64_t> LiveBytes::free_at(Moment step_begin,
                                                          InstanceId first) const {
  std::map<std::uint32_t, std::uint64_t> free;
  for (const auto& [moment, freed] : free_) {
    HO_CHECK(moment < step_begin || freed.detach < first);
    free[moment < step_begin ? kFreeForAll : first - freed.detach] += freed.bytes;
  }
  return free;
}

}  // namespace ho::schedule::proof
