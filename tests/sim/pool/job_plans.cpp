#include "tests/sim/pool/job_plans.hpp"

#include <array>
#include <map>
#include <utility>
#include <variant>

#include "common/base/check.hpp"
#include "tests/sim/job/random_schedule.hpp"
#include "tools/analyzer/analyzer.hpp"

namespace ho::test {
namespace {

schedule::Schedule make_plan(std::uint64_t number, std::uint32_t copies) {
  for (Prng random(number * 7919 + copies);;) {
    const schedule::Schedule source = random_schedule(random);
    const Graph graph = graph_of(source);
    analyzer::Options options;
    const std::uint64_t peak = analyzer::peak_unmanaged_bytes(graph);
    options.device_budget_bytes = peak / 2 + random.below(peak / 2 + 1) + 256;
    options.copies.fill(static_cast<std::uint8_t>(copies));
    const auto outcome = analyzer::analyze(graph, source.hardware, options);
    HO_CHECK(outcome.ok());
    const auto* const plan = std::get_if<schedule::Schedule>(&*outcome);
    if (plan != nullptr && !plan->cache_ops.empty()) return *plan;
  }
}

}  // namespace

const schedule::Schedule& job_plan(std::uint64_t plan, std::uint32_t copies) {
  static std::map<std::pair<std::uint64_t, std::uint32_t>, schedule::Schedule> plans;
  const std::pair key{plan, copies};
  const auto found = plans.find(key);
  if (found != plans.end()) return found->second;
  return plans.emplace(key, make_plan(key.first, copies)).first->second;
}

}  // namespace ho::test
