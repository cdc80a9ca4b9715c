#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "common/cli/values.hpp"
#include "tools/compare/pool.hpp"
#include "tools/examples/gpt/generation_arguments.hpp"

namespace ho::gpt {

/// One way of generating, over all rounds.
struct GenerationRun {
  std::string label;
  std::uint64_t device_bytes = 0;    ///< it may use
  PassUsage usage;                   ///< of the last round
  double prefill_ms = 0;             ///< of all passes; median of the rounds
  double prefill_over_resident = 0;  ///< in the same round; median
  double decode_ms = 0;              ///< mean of a pass; median of the rounds
  double over_resident = 0;          ///< decode, likewise; 0: no token came after prefill's
};

struct GenerationComparison {
  std::vector<GenerationRun> runs;  ///< the first one resident
  bool tokens_identical = false;
  std::vector<std::vector<std::int32_t>> tokens;  ///< the first way's, per prompt
  std::uint64_t link_bytes_per_s = 0;             ///< measured, toward the device
};

struct GenerationContest {
  Connection connection;
  cli::MemorySize device_memory;  ///< all ways but resident have so much
  std::uint32_t rounds = 3;
};

/// Generates in every way: everything resident, by plan, layer by layer, on demand. Each has a pool
/// connection and an arena of its own, and all take turns, round by round, so that what slows the
/// machine for a while meets all alike.
/// @param say  takes a line of progress
[[nodiscard]] Result<GenerationComparison> compare_generation(
    const GenerationJob& job, const GenerationContest& contest, const std::atomic<bool>& stop,
    const std::function<void(const std::string&)>& say);

[[nodiscard]] std::string to_table(const GenerationComparison& comparison);
[[nodiscard]] std::string to_json(const GenerationComparison& comparison);

}  // namespace ho::gpt
