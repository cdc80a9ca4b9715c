#pragma once

#include <vector>

#include "client/replay/replay.hpp"

namespace ho::client {

/// Homes where the schedule puts them: all tiers in one area, those on flash in one extent.
inline std::vector<StorageHome> plain_homes(const schedule::Schedule& schedule,
                                            const HomeArea& area) {
  std::vector<StorageHome> homes(schedule.storages.size());
  for (std::size_t s = 0; s < homes.size(); ++s) {
    if (!schedule.homes[s]) continue;
    if (schedule.homes[s]->tier == schedule::HomeTier::kFlash) {
      homes[s].flash = FlashPlace{NodeIndex(0), 1, schedule.homes[s]->offset_bytes};
      continue;
    }
    homes[s].area = &area;
    homes[s].offset_bytes.fill(schedule.homes[s]->offset_bytes);
  }
  return homes;
}

}  // namespace ho::client
