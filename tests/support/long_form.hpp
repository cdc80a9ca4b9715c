#pragma once

#include <cstdint>

namespace ho::test {

/// The options `--rounds N` and `--seconds N` of a test program. Tests with a long form use them;
/// without them they run for seconds only.
struct LongForm {
  std::uint32_t rounds = 0;  ///< 0: the short form
  double seconds = 0;        ///< 0: the short form
};

inline LongForm& long_form() {
  static LongForm form;
  return form;
}

}  // namespace ho::test
