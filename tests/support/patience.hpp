#pragma once

#include <chrono>
#include <cstdlib>

namespace ho::test {

/// The longest that something promised within `promised` may take in a test. Other work on the
/// machine keeps programs waiting, so by default only a hang is longer; with HO_REAL_TIME in the
/// environment it is the promise itself. Cases that use it have the tag [time]: CTest runs them a
/// second time in the stage time, alone and with HO_REAL_TIME.
inline std::chrono::milliseconds within(std::chrono::milliseconds promised) {
  const bool strict = std::getenv("HO_REAL_TIME") != nullptr;
  return strict ? promised : 20 * promised + std::chrono::seconds(5);
}

}  // namespace ho::test
