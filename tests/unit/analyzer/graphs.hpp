#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/prng.hpp"
#include "common/model/graph.hpp"
#include "common/model/hardware.hpp"
#include "common/schedule/schedule.hpp"
#include "tools/analyzer/analyzer.hpp"

namespace ho::test {

/// Adds storages and ops one by one; ids are indices.
class GraphBuilder {
 public:
  StorageIndex storage(std::uint64_t bytes, StorageKind kind, bool persistent = false,
                       bool pinned = false) {
    const auto index = static_cast<std::uint32_t>(graph_.storages.size());
    graph_.storages.push_back(
        {index, "t" + std::to_string(index), bytes, kind, persistent, pinned});
    return StorageIndex(index);
  }
  OpIndex op(std::uint64_t duration_ns, std::vector<StorageIndex> reads,
             std::vector<StorageIndex> writes) {
    const auto index = static_cast<std::uint32_t>(graph_.ops.size());
    graph_.ops.push_back({index,
                          "op" + std::to_string(index),
                          duration_ns,
                          std::move(reads),
                          std::move(writes),
                          {},
                          "",
                          false,
                          false});
    return OpIndex(index);
  }
  Graph take() { return std::move(graph_); }

 private:
  Graph graph_{"test", {}, {}};
};

/// Op 1 makes a wide value from a narrow one that stays. A filler as wide lives between the wide
/// one's uses. So in 10,000 bytes the wide one must leave in between, or run again if op 1 is
/// recomputable.
inline constexpr StorageIndex kWide{1};
inline Graph wide_from_narrow() {
  GraphBuilder build;
  const auto narrow = build.storage(1000, StorageKind::kActivation);
  const auto wide = build.storage(8000, StorageKind::kActivation);
  const auto filler = build.storage(8000, StorageKind::kActivation);
  build.op(100, {}, {narrow});
  build.op(100, {narrow}, {wide});
  build.op(100, {wide}, {});
  build.op(1000, {}, {filler});
  build.op(1000, {filler}, {});
  build.op(100, {wide, narrow}, {});
  return build.take();
}

/// One tier with equal links both ways.
inline Hardware one_tier(std::uint64_t bytes_per_s, std::uint64_t latency_ns = 0) {
  Hardware hardware;
  hardware.name = "test";
  hardware.device_bytes = 1 << 20;
  hardware.local_ddr =
      TierSpec{std::uint64_t{1} << 40U, {bytes_per_s, latency_ns}, {bytes_per_s, latency_ns}};
  return hardware;
}

/// The same with flash of a quarter of its rate below it.
inline Hardware with_flash(std::uint64_t ddr_bytes, std::uint64_t bytes_per_s = 1'000'000'000) {
  Hardware hardware = one_tier(bytes_per_s);
  hardware.local_ddr->capacity_bytes = ddr_bytes;
  const Link flash{bytes_per_s / 4, 10};
  hardware.flash = TierSpec{std::uint64_t{1} << 40U, flash, flash};
  return hardware;
}

/// A random legal graph: every kind, in-place updates, overwrites, workspaces, uneven sizes.
inline Graph random_graph(std::uint64_t seed, std::uint32_t ops_max) {
  Prng prng(seed);
  GraphBuilder build;
  const auto ops = static_cast<std::uint32_t>(2 + prng.below(ops_max - 1));
  std::vector<StorageIndex> readable;
  // One draw per statement: the order of arguments is up to the compiler.
  const auto bytes = [&] {
    const std::uint64_t most = prng.below(4) == 0 ? 4000 : 500;
    return 1 + prng.below(most);
  };
  const std::uint64_t persistent = prng.below(6);
  for (std::uint64_t i = 0; i < persistent; ++i) {
    const auto kind = prng.below(2) == 0 ? StorageKind::kWeight : StorageKind::kKvCache;
    const bool pinned = prng.below(8) == 0;
    readable.push_back(build.storage(bytes(), kind, true, pinned));
  }
  const std::uint64_t inputs = prng.below(3);
  for (std::uint64_t i = 0; i < inputs; ++i) {
    readable.push_back(build.storage(bytes(), StorageKind::kInput));
  }
  for (std::uint32_t p = 0; p < ops; ++p) {
    std::vector<StorageIndex> reads;
    std::vector<StorageIndex> writes;
    const std::uint64_t read_count = readable.empty() ? 0 : prng.below(4);
    for (std::uint64_t i = 0; i < read_count; ++i) {
      const StorageIndex storage = readable[prng.below(readable.size())];
      if (std::find(reads.begin(), reads.end(), storage) != reads.end()) continue;
      reads.push_back(storage);
      if (prng.below(5) == 0) writes.push_back(storage);
    }
    if (!readable.empty() && prng.below(8) == 0) {
      const StorageIndex storage = readable[prng.below(readable.size())];
      if (std::find(writes.begin(), writes.end(), storage) == writes.end())
        writes.push_back(storage);
    }
    if (prng.below(3) != 0) {
      const bool pinned = prng.below(16) == 0;
      const StorageIndex storage = build.storage(bytes(), StorageKind::kActivation, false, pinned);
      writes.push_back(storage);
      readable.push_back(storage);
    }
    if (prng.below(6) == 0) writes.push_back(build.storage(bytes(), StorageKind::kWorkspace));
    const std::uint64_t duration_ns = prng.below(10) == 0 ? 0 : prng.below(2000);
    build.op(duration_ns, std::move(reads), std::move(writes));
  }
  return build.take();
}

/// For Options::enough_step_ns: every step is this short, so the first plan that fits will do.
inline constexpr std::uint64_t kAnyStepNs = std::uint64_t{1} << 60U;

/// A plan in program order, however long its step is; nullopt if none was found. For tests that ask
/// nothing of the planner: analyze() tries hundreds of plans of a small graph for the shortest one.
inline std::optional<schedule::Schedule> any_plan(const Graph& graph, const Hardware& hardware,
                                                  analyzer::Options options) {
  options.keep_order = true;
  options.enough_step_ns = kAnyStepNs;
  auto outcome = analyzer::analyze(graph, hardware, options);
  if (!outcome) throw std::runtime_error(outcome.error().message());
  if (!std::holds_alternative<schedule::Schedule>(*outcome)) return std::nullopt;
  return std::get<schedule::Schedule>(*std::move(outcome));
}

/// Forward and backward through `layers` layers with weights, gradients and Adam's two states.
inline Graph transformer(std::uint32_t layers, std::uint32_t ops_per_layer) {
  GraphBuilder build;
  std::vector<StorageIndex> saved;
  std::vector<std::vector<StorageIndex>> weights(layers);
  StorageIndex value = build.storage(1 << 20, StorageKind::kInput);
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    for (std::uint32_t i = 0; i < ops_per_layer; ++i) {
      const auto weight = build.storage((1 + i % 4) << 18U, StorageKind::kWeight, true);
      const auto next = build.storage((1 + i % 3) << 19U, StorageKind::kActivation);
      weights[layer].push_back(weight);
      build.op(20'000, {value, weight}, {next});
      saved.push_back(value);
      value = next;
    }
  }
  for (std::uint32_t layer = layers; layer-- > 0;) {
    for (std::uint32_t i = ops_per_layer; i-- > 0;) {
      const auto weight = weights[layer][i];
      const auto bytes = std::uint64_t{(1 + i % 4) << 18U};
      const auto gradient = build.storage(bytes, StorageKind::kGradient);
      const auto next = build.storage((1 + i % 3) << 19U, StorageKind::kActivation);
      const auto moment = build.storage(bytes, StorageKind::kOptimizerState, true);
      build.op(40'000, {value, weight, saved.back()}, {gradient, next});
      build.op(10'000, {gradient, moment, weight}, {moment, weight});
      saved.pop_back();
      value = next;
    }
  }
  return build.take();
}

}  // namespace ho::test
