#pragma once

#include <cstdint>

namespace ho {

/// Which way bytes move between flash and memory. The numbers are those of control.proto.
enum class StageDirection : std::uint8_t {
  kIn = 1,   ///< flash -> memory
  kOut = 2,  ///< memory -> flash
};

}  // namespace ho
