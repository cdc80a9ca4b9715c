#include "mutation.hpp"

#include <catch2/catch.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include "common/schedule/validate.hpp"
#include "execution.hpp"
#include "tests/support/schedule_examples.hpp"
#include "tests/support/schedule_generated.hpp"

namespace ho::test {
namespace {

using schedule::Schedule;

TEST_CASE("execution: a legal schedule computes the right values in every order") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CHECK(execute(training_step(), 4, seed).empty());
    CHECK(execute(deep_offload(12), 3, seed).empty());
  }
}

TEST_CASE("execution: a missing dependency shows in some order") {
  auto schedule = training_step();
  schedule.cache_ops[5].before_position.reset();
  bool shown = false;
  for (std::uint64_t seed = 0; seed < 50 && !shown; ++seed) {
    shown = !execute(schedule, 3, seed).empty();
  }
  CHECK(shown);
}

TEST_CASE("validate: no accepted mutant of the training step ever computes a wrong value") {
  const MutantCount count = check_mutants(training_step(), 4000, 1);
  INFO("accepted " << count.accepted << ", refused " << count.refused);
  CHECK(count.fault == "");
  CHECK(count.accepted > 20);
  CHECK(count.refused > 20);
}

TEST_CASE("validate: no accepted mutant of a deep offload ever computes a wrong value") {
  const MutantCount count = check_mutants(deep_offload(10), 2000, 2);
  INFO("accepted " << count.accepted << ", refused " << count.refused);
  CHECK(count.fault == "");
  CHECK(count.accepted > 20);
  CHECK(count.refused > 20);
}

TEST_CASE("validate: a refused single change shows wrong values in most cases") {
  // Guards against a validator that refuses everything: many of the refused mutants must compute
  // wrong values when they are executed.
  Prng prng(7);
  int refused = 0;
  int wrong = 0;
  while (refused < 300) {
    Schedule mutant = training_step();
    mutate(mutant, prng);
    repair(mutant);
    const auto found = schedule::validate(mutant);
    if (!found) continue;
    static const std::vector<std::string> kOrderRules{
        "overlapping-device-bytes", "prefetch-late",        "store-overtaken",
        "detach-before-store",      "prefetch-races-store", "overlapping-home-bytes"};
    if (std::find(kOrderRules.begin(), kOrderRules.end(), found->rule) == kOrderRules.end()) {
      continue;
    }
    ++refused;
    bool shown = false;
    for (std::uint64_t run = 0; run < 60 && !shown; ++run) {
      shown = !execute(mutant, 3, prng.next()).empty();
    }
    wrong += shown ? 1 : 0;
  }
  INFO("of " << refused << " refused for order, shown wrong: " << wrong);
  CHECK(wrong > refused / 2);
}

}  // namespace
}  // namespace ho::test
