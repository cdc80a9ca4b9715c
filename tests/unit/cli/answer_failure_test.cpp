#include "tools/hyperoffload/answer_failure.hpp"

#include <catch2/catch.hpp>

#include "tests/support/stderr_capture.hpp"

using namespace ho;

// A plan that breaks a rule is an error that no known input brings about.
TEST_CASE("failure: the planner's own mistake is never called bad input") {
  cli::Console console("hyperoffload analyze", cli::Format::kTable);
  const test::StderrCapture capture;
  const Error mistake(Errc::kConflict, "the planner made an illegal plan (misaligned: a; b)");
  CHECK(cli::answer_failure(console, mistake) == cli::kExitNo);
  const std::string said = capture.text();
  CHECK(said.find("the planner made an illegal plan") != std::string::npos);
  CHECK(said.find("This is a mistake in HyperOffload, not in your files.") != std::string::npos);
}

TEST_CASE("failure: every other error of the planner is bad input") {
  cli::Console console("hyperoffload analyze", cli::Format::kTable);
  const test::StderrCapture capture;
  for (const Errc code : {Errc::kInvalidArgument, Errc::kOutOfRange, Errc::kUnsupported}) {
    CHECK(cli::answer_failure(console, Error(code, "a graph")) == cli::kExitBadInput);
  }
  CHECK(capture.text().find("mistake") == std::string::npos);
}
