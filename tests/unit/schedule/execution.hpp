#pragma once

#include <cstdint>
#include <string>

#include "common/schedule/schedule.hpp"
#include "common/schedule/validate.hpp"

namespace ho::test {

/// Runs a schedule once and checks every value that is read. A seed chooses one of the orders that
/// the dependencies allow. Shares no code with validate(): memory consists of cells of 8 bytes,
/// transfers copy cell by cell while other events happen, and ops overwrite their outputs with
/// garbage while they run. Sizes and offsets must be multiples of 8. If the job places storages,
/// each has memory of its own, and at most arena_bytes of it may be in use at a time. Where
/// storages have two homes, one home of each is lost at some moment: never read again, nor written.
[[nodiscard]] std::string execute(const schedule::Schedule& schedule, std::uint32_t steps,
                                  std::uint64_t seed,
                                  schedule::Placement placement = schedule::Placement::kPlanned);

}  // namespace ho::test
