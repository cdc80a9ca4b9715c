#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "client/accel/accel.hpp"

namespace ho::client {

/// Work that must have ended before something may start: all of each lane up to a number. A lane
/// runs in order, so its largest number stands for all smaller ones. 0: nothing of that lane.
struct DeviceOrder {
  std::array<std::uint64_t, kLanes> through{};

  [[nodiscard]] std::uint64_t& operator[](Lane lane) {
    return through[static_cast<std::size_t>(lane)];
  }
  [[nodiscard]] std::uint64_t operator[](Lane lane) const {
    return through[static_cast<std::size_t>(lane)];
  }
  void join(const DeviceOrder& other) {
    for (std::size_t i = 0; i < kLanes; ++i) through[i] = std::max(through[i], other.through[i]);
  }
  bool operator==(const DeviceOrder&) const = default;
};

}  // namespace ho::client
