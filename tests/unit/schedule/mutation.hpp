#pragma once

#include <cstdint>
#include <string>

#include "common/base/prng.hpp"
#include "common/schedule/schedule.hpp"
#include "common/schedule/validate.hpp"

namespace ho::test {

/// Makes one random change. The result may be legal or illegal.
void mutate(schedule::Schedule& schedule, Prng& prng);
/// Adjusts ranges and arenas, so that mutants reach the rules about order.
void repair(schedule::Schedule& schedule);

struct MutantCount {
  std::uint64_t accepted = 0;
  std::uint64_t refused = 0;
  std::string fault;  ///< an accepted mutant that computed a wrong value, with its seeds
};
/// Executes the mutants of `legal` that validate() accepts, each in several orders. Stops at the
/// first wrong value.
[[nodiscard]] MutantCount check_mutants(
    const schedule::Schedule& legal, std::uint64_t mutants, std::uint64_t seed,
    schedule::Placement placement = schedule::Placement::kPlanned);

}  // namespace ho::test
