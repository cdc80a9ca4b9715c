#include <catch2/catch.hpp>

#include <span>
#include <variant>

#include "tests/support/test_data.hpp"
#include "tools/analyzer/analyzer.hpp"
#include "tools/baselines/baselines.hpp"
#include "tools/importers/import.hpp"

namespace ho::test {
namespace {

using Importer = Result<importers::Imported> (*)(std::string_view, const importers::Options&);

struct RealFile {
  const char* path;
  Importer importer;
  double over_bound;  ///< limit for step / lower bound
};

constexpr RealFile kSmall[] = {
    {"linear_et.json.gz", importers::import_pytorch, 1.25},
    // Its largest weight is used last. 1.06 if that one leaves wherever others need a little room.
    {"gpt12x768_noweights.onnx.gz", importers::import_onnx, 1.05}};
constexpr RealFile kLarge[] = {{"llama7b_b4_seq4096.rank0.et.gz", importers::import_chakra, 1.05},
                               {"llama7b_tp2pp2_b8.rank0.et.gz", importers::import_chakra, 1.20}};

void check_plans(std::span<const RealFile> files) {
  const Hardware hardware = reference_hardware("g10");
  for (const RealFile& file : files) {
    INFO(file.path);
    const auto made = file.importer(test_data(std::string("traces/") + file.path), {});
    INFO((made ? "" : made.error().message()));
    REQUIRE(made.ok());
    analyzer::Options options;
    options.device_budget_bytes = analyzer::peak_unmanaged_bytes(made->graph) / 10 * 6;
    const auto outcome = analyzer::analyze(made->graph, hardware, options);
    REQUIRE(outcome.ok());
    const auto* const plan = std::get_if<schedule::Schedule>(&*outcome);
    REQUIRE(plan != nullptr);
    CHECK(plan->arena_bytes <= options.device_budget_bytes);
    CHECK(static_cast<double>(plan->prediction.step_ns) <=
          file.over_bound * static_cast<double>(plan->prediction.lower_bound_ns));
    // Steps of thousands of small ops, unlike those that the planner's variants were made for.
    for (const auto policy : {analyzer::Baseline::kG10Greedy, analyzer::Baseline::kOnDemandLru,
                              analyzer::Baseline::kLayerWindow}) {
      const auto other = analyzer::simulate_baseline(*plan, hardware, policy);
      if (other) CHECK(plan->prediction.step_ns <= other->step_ns);
    }
  }
}

TEST_CASE("importers: small public traces and models are planned at 60 % of their peak") {
  check_plans(kSmall);
}

TEST_CASE("importers: large public traces are planned at 60 % of their peak", "[soak]") {
  check_plans(kLarge);
}

}  // namespace
}  // namespace ho::test
