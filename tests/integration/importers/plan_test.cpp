#include <catch2/catch.hpp>

#include <cstdlib>
#include <filesystem>
#include <variant>

#include "common/schedule/validate.hpp"
#include "proto/convert.hpp"
#include "proto/file.hpp"
#include "tools/analyzer/analyzer.hpp"
#include "tools/baselines/baselines.hpp"
#include "tools/importers/import.hpp"
#include "tools/importers/unpack.hpp"
#include "tools/simulator/simulate.hpp"

namespace ho::test {
namespace {

namespace fs = std::filesystem;
using Importer = Result<importers::Imported> (*)(std::string_view, const importers::Options&);

struct RealFile {
  const char* path;
  Importer importer;
};

TEST_CASE("importers: every public trace and model is planned at 60 % of its peak") {
  const char* const from_env = std::getenv("HO_DATA_DIR");
  const fs::path folder(from_env != nullptr ? from_env : HO_DATA_DIR);
  const auto file =
      GENERATE(RealFile{"chakra/llama7b_b4_seq4096.rank0.et.gz", importers::import_chakra},
               RealFile{"chakra/llama7b_tp2pp2_b8.rank0.et.gz", importers::import_chakra},
               RealFile{"pytorch-et/hf_GPT2_et.json.tar.gz", importers::import_pytorch},
               RealFile{"pytorch-et/linear_et.json.gz", importers::import_pytorch},
               RealFile{"onnx/gpt12x768_noweights.onnx", importers::import_onnx});
  if (!fs::exists(folder / file.path)) {
    WARN("skipped: no file " << folder / file.path);
    return;
  }
  INFO(file.path);
  const auto hardware = read_hardware_file(folder / "hardware/g10.json");
  REQUIRE(hardware.ok());
  auto packed = read_whole_file(folder / file.path, importers::kInputBytesMax);
  REQUIRE(packed.ok());
  const auto bytes = importers::unpack(*std::move(packed));
  REQUIRE(bytes.ok());
  const auto made = file.importer(*bytes, {});
  INFO((made ? "" : made.error().message()));
  REQUIRE(made.ok());
  analyzer::Options options;
  options.device_budget_bytes = analyzer::peak_unmanaged_bytes(made->graph) / 10 * 6;
  const auto outcome = analyzer::analyze(made->graph, *hardware, options);
  REQUIRE(outcome.ok());
  const auto* const plan = std::get_if<schedule::Schedule>(&*outcome);
  REQUIRE(plan != nullptr);
  CHECK(plan->arena_bytes <= options.device_budget_bytes);
  CHECK(plan->prediction.step_ns >= plan->prediction.lower_bound_ns);
  CHECK_FALSE(schedule::validate(*plan).has_value());
  // Steps of thousands of small ops, unlike those that the planner's variants were made for.
  for (const auto policy : {analyzer::Baseline::kG10Greedy, analyzer::Baseline::kOnDemandLru,
                            analyzer::Baseline::kLayerWindow}) {
    const auto other = analyzer::simulate_baseline(*plan, *hardware, policy);
    if (other) CHECK(plan->prediction.step_ns <= other->step_ns);
  }
}

}  // namespace
}  // namespace ho::test
