#include "tools/bench/latencies.hpp"

namespace ho::bench {
namespace {

constexpr std::size_t kSamplesMax = 1'000'000;

}  // namespace

Latencies::Latencies(std::size_t slots) : started_(slots) { samples_ns_.reserve(kSamplesMax); }

void Latencies::end(std::size_t slot, TimePoint now) {
  if (samples_ns_.size() == kSamplesMax) return;
  samples_ns_.push_back(static_cast<std::uint32_t>((now - started_[slot]).count()));
}

std::vector<double> Latencies::us() const {
  std::vector<double> latencies;
  for (const std::uint32_t sample_ns : samples_ns_) latencies.push_back(sample_ns / 1e3);
  return latencies;
}

}  // namespace ho::bench
