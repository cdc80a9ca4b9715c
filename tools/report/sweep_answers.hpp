#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/report/memory_sweep.hpp"

namespace ho::analyzer {

/// How much memory the step needs at one bandwidth, in words.
struct SweepAnswer {
  double bandwidth = 1;
  /// The smallest budget that costs nothing: with it and with every larger one of the sweep, the
  /// step is at most 1 % longer than its ops. nullopt: none does.
  std::optional<std::uint64_t> enough_bytes;
  std::string text;  ///< sentences; plain text
};

/// One answer for each bandwidth, in the order of the sweep. Pure.
[[nodiscard]] std::vector<SweepAnswer> sweep_answers(const Sweep& sweep);

}  // namespace ho::analyzer
