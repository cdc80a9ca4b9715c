#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

#include "tests/support/skip.hpp"

int main(int argc, char** argv) {
  Catch::Session session;
  if (const int wrong = session.applyCommandLine(argc, argv); wrong != 0) return wrong;
#if CATCH_VERSION_MAJOR == 2  // later ones do so without being asked
  // A name that no case has must not pass.
  session.configData().warnings = static_cast<Catch::WarnAbout::What>(
      session.configData().warnings | Catch::WarnAbout::NoTests);
#endif
  if (session.run() != 0) return 1;  // the number of failures might be the status of a skip
  return ho::test::any_case_skipped() ? ho::test::kSkipStatus : 0;
}
