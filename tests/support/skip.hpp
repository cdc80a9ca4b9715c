#pragma once

#include <iostream>
#include <string>

namespace ho::test {

/// Exit status of a test program with a skipped case. CTest runs each case by itself and counts it
/// as skipped (ho_test_program()).
inline constexpr int kSkipStatus = 77;

/// Whether a case of this run was skipped.
inline bool& any_case_skipped() {
  static bool skipped = false;
  return skipped;
}

/// Reports that a case cannot run here; the case must return right after. Catch2 v2 cannot skip
/// cases, so the exit status of the program shows it. `tools/test --all` fails where the reason is
/// not in tests/expected_skips.txt.
inline void skip(const std::string& reason) {
  std::cout << "SKIPPED: " << reason << std::endl;
  any_case_skipped() = true;
}

}  // namespace ho::test
