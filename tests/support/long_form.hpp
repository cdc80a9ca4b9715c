#pragma once

#include <cstdint>

namespace ho::test {

/// How much a person asked for: `--rounds N` and `--seconds N` of a test program. Tests that have a
/// long form use them; without them they take the short one, of seconds.
struct LongForm {
  std::uint32_t rounds = 0;  ///< 0: the short form
  double seconds = 0;        ///< 0: the short form
};

inline LongForm& long_form() {
  static LongForm form;
  return form;
}

}  // namespace ho::test
