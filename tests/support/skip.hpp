#pragma once

#include <iostream>
#include <string>

namespace ho::test {

/// Exit status of a test program with a skipped case. CTest then counts it as skipped (ho_test()).
inline constexpr int kSkipStatus = 77;

/// Whether a case of this program was skipped.
inline bool& any_case_skipped() {
  static bool skipped = false;
  return skipped;
}

/// Reports that a case cannot run here; the case must return right after. Catch2 v2 cannot skip
/// cases, so the exit status of the program shows it: put cases that may be skipped into programs
/// of their own.
inline void skip(const std::string& reason) {
  std::cout << "SKIPPED: " << reason << "\n";
  any_case_skipped() = true;
}

}  // namespace ho::test
