#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

#include "tests/support/long_form.hpp"
#include "tests/support/skip.hpp"

int main(int argc, char** argv) {
  Catch::Session session;
  auto& form = ho::test::long_form();
  session.cli(session.cli() |
              Catch::clara::Opt(form.rounds, "count")["--rounds"]("long form: repetitions") |
              Catch::clara::Opt(form.seconds, "time")["--seconds"]("long form: time of a run"));
  if (const int wrong = session.applyCommandLine(argc, argv); wrong != 0) return wrong;
  // A name that CTest passes and no case has must not pass.
  session.configData().warnings = static_cast<Catch::WarnAbout::What>(
      session.configData().warnings | Catch::WarnAbout::NoTests);
  if (session.run() != 0) return 1;  // the number of failures might be the status of a skip
  return ho::test::any_case_skipped() ? ho::test::kSkipStatus : 0;
}
