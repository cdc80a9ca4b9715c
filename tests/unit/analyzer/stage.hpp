#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "common/model/graph.hpp"
#include "common/model/hardware.hpp"
#include "tests/unit/analyzer/graphs.hpp"
#include "tools/analyzer/play/play.hpp"
#include "tools/analyzer/problem/liveness.hpp"
#include "tools/analyzer/problem/problem.hpp"

namespace ho::test {

/// A graph on one tier, with the inputs of a pass.
struct Stage {
  Stage(Graph made, const Hardware& hardware)
      : graph(std::move(made)),
        life(analyzer::lifetimes_of(graph, 1)),
        tiers(analyzer::plan_tiers(hardware)),
        tier_of(graph.storages.size(), 0),
        at_home(graph.storages.size(), 0) {
    for (const Op& op : graph.ops) durations.push_back(static_cast<std::int64_t>(op.duration_ns));
  }
  [[nodiscard]] analyzer::Problem input() const {
    return {life, durations, tiers, tier_of, at_home};
  }
  /// Runs one pass without knowledge of earlier ones.
  [[nodiscard]] std::optional<analyzer::Played> pass(std::uint64_t target_bytes,
                                                     int steps = 4) const {
    const analyzer::PlayedStep step = analyzer::played_step(input(), 0);
    return analyzer::play(
        input(), step,
        {room(target_bytes), steps, step.candidates, {}, {}, no_limit(), {}, {}, {}, {}});
  }
  [[nodiscard]] std::vector<std::int64_t> room(std::uint64_t bytes) const {
    return std::vector<std::int64_t>(life.positions, static_cast<std::int64_t>(bytes));
  }
  [[nodiscard]] std::vector<std::uint64_t> no_limit() const {
    return std::vector<std::uint64_t>(tiers.size(), UINT64_MAX / 4);
  }

  Graph graph;
  analyzer::Lifetimes life;
  std::vector<analyzer::PlanTier> tiers;
  std::vector<std::uint8_t> tier_of;
  std::vector<std::uint8_t> at_home;
  std::vector<std::int64_t> durations;
};

/// A passing value of 6,000 bytes, then 40 weights of 1,000 bytes and one of 40,000, each read by
/// one op: in room for 2,000 bytes more than the weights need, some must leave for the first ops.
/// The large one is used last, so its next use is then the furthest away.
inline Stage weights_behind_a_peak() {
  GraphBuilder build;
  const auto passing = build.storage(6000, StorageKind::kActivation);
  build.op(1000, {}, {passing});
  build.op(1000, {passing}, {});
  for (int i = 0; i < 41; ++i) {
    const auto weight = build.storage(i < 40 ? 1000 : 40'000, StorageKind::kWeight, true);
    build.op(100, {weight}, {});
  }
  Stage out(build.take(), one_tier(1'000'000'000));
  out.at_home.assign(out.graph.storages.size(), 1);
  return out;
}

}  // namespace ho::test
