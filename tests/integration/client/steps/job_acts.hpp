#pragma once

#include <hyperoffload/hyperoffload.h>

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <variant>

#include "common/base/prng.hpp"
#include "common/schedule/schedule.hpp"
#include "tests/integration/client/steps/planned_job.hpp"
#include "tests/sim/job/random_schedule.hpp"
#include "tests/support/schedule_builder.hpp"
#include "tools/analyzer/analyzer.hpp"

// Schedules for jobs, some of them with an accelerator, and what such jobs do.
namespace ho::test {

/// A planned step of a random schedule, with a budget below its peak: values stay on the device
/// between steps.
inline schedule::Schedule analyzed(const schedule::Schedule& source, Prng& random) {
  const Graph graph = graph_of(source);
  const std::uint64_t peak = analyzer::peak_unmanaged_bytes(graph);
  for (std::uint64_t budget = peak / 2 + random.below(peak / 4 + 1) + 256;; budget += peak / 8) {
    const auto outcome = analyzer::analyze(graph, source.hardware, {budget, 64});
    REQUIRE(outcome.ok());
    if (const auto* plan = std::get_if<schedule::Schedule>(&*outcome)) return *plan;
  }
}

/// A planned step in which each storage has two homes. None: the budget is too small.
inline std::optional<schedule::Schedule> doubled(Prng& random) {
  const schedule::Schedule source = random_schedule(random);
  const Graph graph = graph_of(source);
  analyzer::Options options;
  const std::uint64_t peak = analyzer::peak_unmanaged_bytes(graph);
  options.device_budget_bytes = peak / 2 + random.below(peak / 2 + 1) + 256;
  options.copies.fill(2);
  const auto outcome = analyzer::analyze(graph, source.hardware, options);
  REQUIRE(outcome.ok());
  const auto* const plan = std::get_if<schedule::Schedule>(&*outcome);
  return plan != nullptr ? std::optional(*plan) : std::nullopt;
}

/// Memory by callbacks and arenas take turns.
inline PlannedJob::Device device_of(std::uint64_t seed) {
  return seed % 4 < 2 ? PlannedJob::Device::kHosted : PlannedJob::Device::kArena;
}

/// Does random acts with a job.
inline void act(PlannedJob& job, std::size_t plans, Prng& random, int acts) {
  for (int i = 0; i < acts; ++i) {
    const std::uint64_t what = random.below(12);
    INFO("act " << i << ": " << what << " " << job.error());
    const std::size_t which = random.below(plans);
    switch (what) {
      case 0: REQUIRE(job.sync_and_compare() == HO_OK); break;
      case 1: REQUIRE(job.compare_some(random) == HO_OK); break;
      case 2: REQUIRE(job.write_some(random) == HO_OK); break;
      case 3: {
        const auto left =
            static_cast<std::uint32_t>(random.below(ho_position_count(job.plan(which)) + 1));
        REQUIRE(job.run_and_leave(left, which) == HO_OK);
        break;
      }
      default: REQUIRE(job.run(1 + random.below(4), which) == HO_OK);
    }
    REQUIRE(job.wrong() == "");
  }
  REQUIRE(job.sync_and_compare() == HO_OK);
  REQUIRE(job.wrong() == "");
  REQUIRE(job.host().wrong() == "");
}

inline constexpr std::uint64_t kPassingBytes = 256 << 10;

/// A weight that each step fetches, updates and stores.
inline schedule::Schedule passing() {
  using B = ScheduleBuilder;
  B b;
  const auto w = b.storage("w", kPassingBytes, B::kWeight, 0);
  const auto x = b.storage("x", kPassingBytes, B::kActivation);
  b.op({B::update(w, 0), B::write(x, kPassingBytes)});
  b.op({B::read(x, kPassingBytes)});
  b.prefetch(w, 0, {.before = 0, .after_cache_ops = {B::previous(2)}});
  b.store(w, 0, {.after = 0, .after_cache_ops = {B::same(0)}});
  b.detach(w, 0, {.after_cache_ops = {B::same(1)}});
  return b.finish();
}

}  // namespace ho::test
