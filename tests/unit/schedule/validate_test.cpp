#include "common/schedule/validate.hpp"

#include <catch2/catch.hpp>

#include "tests/support/schedule_examples.hpp"

namespace ho::test {
namespace {

using schedule::validate;

/// The broken rule's name; empty: legal.
std::string rule(const schedule::Schedule& schedule) {
  const auto found = validate(schedule);
  if (found) {
    UNSCOPED_INFO(found->rule << " | " << found->first << " | " << found->second << " | "
                              << found->detail);
  }
  return found ? found->rule : "";
}

TEST_CASE("validate: the training step with every kind of cache op is legal") {
  CHECK(rule(training_step()) == "");
}

TEST_CASE("validate: an op that does not wait for its prefetch is named") {
  auto schedule = training_step();
  schedule.cache_ops[5].before_position.reset();
  CHECK(rule(schedule) == "prefetch-late");
}

}  // namespace
}  // namespace ho::test
