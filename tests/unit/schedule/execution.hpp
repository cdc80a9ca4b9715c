#pragma once

#include <cstdint>
#include <string>

#include "common/schedule/schedule.hpp"

namespace ho::test {

/// Runs a schedule once, in an order that a seed chooses among all those its dependencies allow,
/// and looks at every value that is read. It shares nothing with validate(): memory is cells of 8
/// bytes, transfers copy cell by cell while other things happen, ops spoil what they write while
/// they run. Sizes and offsets must be multiples of 8.
/// @return what went wrong first (a wrong value, or nothing can run any more); empty: nothing.
[[nodiscard]] std::string execute(const schedule::Schedule& schedule, std::uint32_t steps,
                                  std::uint64_t seed);

}  // namespace ho::test
