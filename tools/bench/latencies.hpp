#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/clock.hpp"

namespace ho::bench {

/// Durations of operations, from submission to completion, by slot. Does not allocate in use: it
/// keeps the first million.
class Latencies {
 public:
  explicit Latencies(std::size_t slots);
  void begin(std::size_t slot, TimePoint now) { started_[slot] = now; }
  void end(std::size_t slot, TimePoint now);
  [[nodiscard]] std::vector<double> us() const;
  void forget() { samples_ns_.clear(); }

 private:
  std::vector<TimePoint> started_;
  std::vector<std::uint32_t> samples_ns_;
};

}  // namespace ho::bench
