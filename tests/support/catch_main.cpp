#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

#include "tests/support/skip.hpp"

int main(int argc, char** argv) {
  const int failed = Catch::Session().run(argc, argv);
  if (failed != 0) return failed;
  return ho::test::any_case_skipped() ? ho::test::kSkipStatus : 0;
}
