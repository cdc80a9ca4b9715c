#pragma once

#include <cstdint>

namespace ho::client {

/// Which nodes: near ones are reached by `local`. Where a pool has none of the kind that an arena
/// prefers, any node will do.
enum class Nearness : std::uint8_t { kAny, kNear, kFar };

}  // namespace ho::client
