#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/clock.hpp"

namespace ho::bench {

/// How long operations took, submit to completion, by slot. Never allocates while it is used: it
/// keeps a million and leaves out the rest.
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
