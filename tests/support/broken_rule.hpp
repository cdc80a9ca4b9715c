#pragma once

#include <catch2/catch.hpp>

#include <string>

#include "common/schedule/validate.hpp"

namespace ho::test {

/// Returns the rule that validate() finds broken; empty if the schedule is legal. Prints both
/// parties with the test's messages.
inline std::string broken_rule(const schedule::Schedule& schedule,
                               schedule::Placement placement = schedule::Placement::kPlanned) {
  const auto found = schedule::validate(schedule, placement);
  if (found) {
    UNSCOPED_INFO(found->rule << " | " << found->first << " | " << found->second << " | "
                              << found->detail);
  }
  return found ? found->rule : "";
}

}  // namespace ho::test
