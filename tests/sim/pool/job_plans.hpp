#pragma once

#include <cstdint>

#include "common/base/prng.hpp"
#include "common/schedule/schedule.hpp"

namespace ho::test {

/// One of `plans` random plans whose storages have `copies` homes. Plans are made once and shared
/// by all seeds, since making one takes longer than simulating with it.
[[nodiscard]] const schedule::Schedule& job_plan(std::uint64_t plan, std::uint32_t copies);

}  // namespace ho::test
