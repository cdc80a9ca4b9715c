#include <algorithm>
#include <catch2/catch.hpp>
#include <iostream>
#include <vector>

#include "tests/integration/client/steps/planned_job.hpp"
#include "tests/integration/client/two_nodes.hpp"
#include "tests/integration/flash/staging_client.hpp"
#include "tests/support/skip.hpp"
#include "tests/support/staged_schedule.hpp"

namespace {

using namespace ho;

constexpr std::uint64_t kBytes = 256 * kMiB;
constexpr int kSteps = 9;
/// The goal is 0.90 of the slower of the two alone.
constexpr double kGuard = 0.75;

}  // namespace

TEST_CASE("flash overlap: a planned stage_in and its get take little longer than the stage_in") {
  {
    const test::TempFolder folder;
    test::make_file(folder.file("flash"), 2 * kMiB);
    const std::string why = test::no_flash_here(folder.file("flash"));
    if (!why.empty()) return test::skip(why);
  }
  test::PoolSpec spec;
  spec.ddr_bytes = 512 * kMiB;
  spec.lease_ms = 60'000;
  spec.flash_bytes = 512 * kMiB;
  test::TwoNodes nodes(spec);
  const test::PoolHandle pool = test::connect_pool(nodes.address(0), "auto");
  const auto schedule = test::staged_schedule(kBytes);
  test::PlannedJob job(pool.get(), schedule, 5);
  INFO(job.error());
  REQUIRE(job.plan() != nullptr);
  std::vector<double> in;
  std::vector<double> out;
  for (int step = 0; step < kSteps; ++step) {
    REQUIRE(job.run(1) == HO_OK);
    std::vector<ho_span> spans(ho_cache_op_count(job.plan()));
    REQUIRE(ho_get_timeline(job.plan(), nullptr, spans.data()) == HO_OK);
    const auto time = [&](std::uint32_t from, std::uint32_t to) {
      return static_cast<double>(spans[to].end_ns - spans[from].start_ns);
    };
    using Ops = test::StagedOps;
    in.push_back(time(Ops::kStageIn, Ops::kStageIn) / time(Ops::kStageIn, Ops::kPrefetch));
    out.push_back(time(Ops::kStageOut, Ops::kStageOut) / time(Ops::kStore, Ops::kStageOut));
    std::cout << "stage_in " << time(Ops::kStageIn, Ops::kStageIn) / 1e6 << " ms, with its get "
              << time(Ops::kStageIn, Ops::kPrefetch) / 1e6 << " ms; stage_out "
              << time(Ops::kStageOut, Ops::kStageOut) / 1e6 << " ms, with its put "
              << time(Ops::kStore, Ops::kStageOut) / 1e6 << " ms\n";
  }
  REQUIRE(job.wrong() == "");
  std::sort(in.begin(), in.end());
  std::sort(out.begin(), out.end());
  std::cout << "of the slower alone, medians: in " << in[in.size() / 2] << ", out "
            << out[out.size() / 2] << "\n";
  CHECK(in[in.size() / 2] > kGuard);
  CHECK(out[out.size() / 2] > kGuard);
}
