#pragma once

#include <catch2/catch.hpp>

#include <string>

#include "common/schedule/validate.hpp"

namespace ho::test {

/// The name of the rule that validate() finds broken, told to Catch with its parties; empty: legal.
inline std::string broken_rule(const schedule::Schedule& schedule) {
  const auto found = schedule::validate(schedule);
  if (found) {
    UNSCOPED_INFO(found->rule << " | " << found->first << " | " << found->second << " | "
                              << found->detail);
  }
  return found ? found->rule : "";
}

}  // namespace ho::test
