#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/prng.hpp"
#include "common/base/units.hpp"
#include "common/schedule/schedule.hpp"
#include "tests/sim/job/random_schedule.hpp"
#include "tools/analyzer/analyzer.hpp"

// Schedules that need flash.
namespace ho::test {

/// A random step, `scale` times as large, planned with too little DDR for all storages. None: the
/// budget is too small, or flash is not needed.
/// @param more_budget  in eighths of the peak.
/// @param flash  false: the same step with all homes in DDR.
inline std::optional<schedule::Schedule> plan_with_flash(std::uint64_t seed, std::uint64_t scale,
                                                         std::uint64_t more_budget = 0,
                                                         bool flash = true) {
  Prng random(seed);
  const schedule::Schedule source = random_schedule(random);
  Graph graph = graph_of(source);
  for (Storage& storage : graph.storages) storage.bytes *= scale;
  const std::uint64_t peak = analyzer::peak_unmanaged_bytes(graph);
  Hardware hardware = source.hardware;
  hardware.remote_ddr.reset();
  hardware.local_ddr =
      TierSpec{flash ? peak / 2 : 16 * peak, {5'000'000'000, 1000}, {5'000'000'000, 1000}};
  if (flash) {
    hardware.flash = TierSpec{12 * kMiB, {1'000'000'000, 20000}, {1'000'000'000, 20000}};
  } else {
    hardware.flash.reset();
  }
  analyzer::Options options;
  options.device_budget_bytes = peak / 2 + more_budget * peak / 8 + 4096;
  auto outcome = analyzer::analyze(graph, hardware, options);
  REQUIRE(outcome.ok());
  auto* const schedule = std::get_if<schedule::Schedule>(&*outcome);
  if (schedule == nullptr) return std::nullopt;
  if (!flash) return std::move(*schedule);
  if (schedule->flash_bytes == 0) return std::nullopt;
  if (schedule->prediction.stage_in_bytes == 0) return std::nullopt;
  return std::move(*schedule);
}

/// The seeds to try. The first ones have given what is looked for here; to plan all before them
/// takes seconds, with a sanitizer minutes.
inline std::vector<std::uint64_t> likely_seeds() {
  std::vector<std::uint64_t> seeds{11, 23, 32, 42, 60, 85, 87};
  for (std::uint64_t other = 1; other < 400; ++other) {
    if (std::find(seeds.begin(), seeds.end(), other) == seeds.end()) seeds.push_back(other);
  }
  return seeds;
}

inline std::vector<schedule::Schedule> plans_with_flash(std::size_t count, std::uint64_t scale) {
  std::vector<schedule::Schedule> plans;
  for (const std::uint64_t seed : likely_seeds()) {
    if (plans.size() == count) break;
    auto plan = plan_with_flash(seed, scale);
    if (plan) plans.push_back(std::move(*plan));
  }
  REQUIRE(plans.size() == count);
  return plans;
}

inline bool on_flash(const schedule::Schedule& schedule, std::size_t storage) {
  const auto& home = schedule.homes[storage];
  return home && home->tier == schedule::HomeTier::kFlash;
}

/// Two plans of one job, the one with the larger arena first, which share values with homes on
/// flash.
inline std::vector<schedule::Schedule> plans_that_share_flash(std::uint64_t scale) {
  for (const std::uint64_t seed : likely_seeds()) {
    auto large = plan_with_flash(seed, scale, 1);
    if (!large) continue;
    bool shares = false;
    for (std::size_t s = 0; s < large->storages.size(); ++s) {
      shares = shares || (large->storages[s].persistent && on_flash(*large, s));
    }
    if (!shares) continue;
    auto small = plan_with_flash(seed, scale);
    if (!small || large->arena_bytes < small->arena_bytes) continue;
    bool fits = true;
    for (std::size_t s = 0; s < large->storages.size(); ++s) {
      if (large->storages[s].persistent) fits = fits && on_flash(*large, s) == on_flash(*small, s);
    }
    if (!fits) continue;
    return {std::move(*large), std::move(*small)};
  }
  FAIL("no such plans");
  return {};
}

}  // namespace ho::test
