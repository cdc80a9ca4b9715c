#pragma once

#include <cstdint>
#include <string>

#include "common/schedule/schedule.hpp"

namespace ho::schedule {

/// The three lists of cache ops in a schedule.
enum class CacheOpList : std::uint8_t { kSteady, kPrologue, kEpilogue };

/// `storage 7 ("w1")`, with the graph's id and name.
[[nodiscard]] std::string describe(const Schedule& schedule, StorageIndex storage);
/// `position 3: op 12 ("fc1")`.
[[nodiscard]] std::string describe(const Schedule& schedule, Position position);
/// `cache_ops[5]: prefetch of storage 7 ("w1")`.
[[nodiscard]] std::string describe(const Schedule& schedule, CacheOpList list, std::size_t index);

}  // namespace ho::schedule
