// Storages with two homes: what validate() demands of their Stores and Detaches.
#include <catch2/catch.hpp>

#include <algorithm>
#include <optional>
#include <string>
#include <variant>

#include "common/base/units.hpp"
#include "common/schedule/validate.hpp"
#include "execution.hpp"
#include "mutation.hpp"
#include "tests/support/seeds.hpp"
#include "tests/unit/analyzer/graphs.hpp"
#include "tools/analyzer/analyzer.hpp"
#include "tools/analyzer/emit/copies.hpp"

namespace ho::test {
namespace {

using schedule::CacheOpKind;
using schedule::Schedule;

analyzer::CopiesByKind two_of_all() {
  analyzer::CopiesByKind copies{};
  copies.fill(2);
  return copies;
}

/// A plan of a random graph in which every storage has two homes; nullopt if no plan fits.
std::optional<Schedule> planned(std::uint64_t seed) {
  Graph graph = random_graph(seed, 16);
  for (Storage& storage : graph.storages) storage.bytes = align_up(storage.bytes, 64);
  analyzer::Options options;
  options.device_budget_bytes = align_up(analyzer::peak_unmanaged_bytes(graph) * 7 / 10, 64);
  options.copies = two_of_all();
  const auto outcome = analyzer::analyze(graph, one_tier(1'000'000'000), options);
  if (!outcome) FAIL(outcome.error().message());
  if (!outcome || !std::holds_alternative<Schedule>(*outcome)) return std::nullopt;
  CHECK(std::get<Schedule>(*outcome).prediction.refused_plans == 0);
  return std::get<Schedule>(*outcome);
}

/// A plan with a Detach that waits for a Store of each home.
struct Found {
  Schedule plan;
  std::size_t detach = 0;
  std::size_t second_store = 0;
};

enum class Epilogue { kAny, kStoresTwice };

std::optional<Found> find_detach(Epilogue epilogue = Epilogue::kAny) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const auto plan = planned(seed);
    if (!plan) continue;
    const bool stores_twice = std::any_of(plan->epilogue.begin(), plan->epilogue.end(),
                                          [](const auto& op) { return op.copy == 1; });
    if (epilogue == Epilogue::kStoresTwice && !stores_twice) continue;
    const auto& ops = plan->cache_ops;
    for (std::size_t d = 0; d < ops.size(); ++d) {
      if (ops[d].kind != CacheOpKind::kDetach) continue;
      if (!plan->storages[ops[d].storage.value()].persistent) continue;
      for (const auto& ref : ops[d].after_cache_ops) {
        const auto& store = ops[ref.op.value()];
        if (store.kind == CacheOpKind::kStore && store.copy == 1) {
          return Found{*plan, d, ref.op.value()};
        }
      }
    }
  }
  return std::nullopt;
}

TEST_CASE("copies: plans survive the loss of either home in every order, accepted mutants too") {
  const std::uint64_t seeds = seed_count(150);
  std::uint64_t doubled = 0;
  std::uint64_t accepted = 0;
  std::uint64_t refused = 0;
  for_each_seed(seeds, [&](std::uint64_t seed) {
    const auto plan = planned(seed);
    if (!plan) return;
    for (const auto& op : plan->cache_ops) doubled += op.copy;
    for (std::uint32_t run = 0; run < 10; ++run) {
      INFO("run " << run);
      REQUIRE(execute(*plan, 1 + run % 4, seed * 100 + run) == "");
    }
    if (plan->cache_ops.empty() || (!only_seed() && seed > seeds * 8 / 15)) return;
    const MutantCount mutants = check_mutants(*plan, 40, seed);
    REQUIRE(mutants.fault == "");
    accepted += mutants.accepted;
    refused += mutants.refused;
  });
  if (only_seed()) return;
  CAPTURE(doubled, accepted, refused);
  CHECK(doubled > seeds * 40 / 150);
  CHECK(accepted > seeds * 40 / 150);
  CHECK(refused > seeds * 40 / 150);
}

TEST_CASE("copies: a detach that waits for one home's store only is refused") {
  auto found = find_detach();
  REQUIRE(found);
  REQUIRE_FALSE(schedule::validate(found->plan));
  auto& refs = found->plan.cache_ops[found->detach].after_cache_ops;
  std::erase_if(refs, [&](const auto& ref) { return ref.op.value() == found->second_store; });
  CHECK(schedule::validate(found->plan));
}

TEST_CASE("copies: a value that one home gets alone is refused") {
  auto found = find_detach();
  REQUIRE(found);
  auto& ops = found->plan.cache_ops;
  std::vector<schedule::CacheOpIndex> place;
  for (std::uint32_t i = 0; i < ops.size(); ++i) {
    place.emplace_back(i - (i > found->second_store ? 1 : 0));
  }
  for (auto& op : ops) {
    std::erase_if(op.after_cache_ops,
                  [&](const auto& ref) { return ref.op.value() == found->second_store; });
    for (auto& ref : op.after_cache_ops) ref.op = place[ref.op.value()];
  }
  ops.erase(ops.begin() + static_cast<std::ptrdiff_t>(found->second_store));
  const auto violation = schedule::validate(found->plan);
  REQUIRE(violation);
  CHECK((violation->rule == "stale-home" || violation->rule == "lost-value"));
}

TEST_CASE("copies: two stores into the same home are refused") {
  auto found = find_detach();
  REQUIRE(found);
  found->plan.cache_ops[found->second_store].copy = 0;
  CHECK(schedule::validate(found->plan));
}

TEST_CASE("copies: homes that a storage is to have and has not are refused") {
  auto found = find_detach(Epilogue::kStoresTwice);
  REQUIRE(found);
  Schedule& plan = found->plan;
  const auto s = plan.cache_ops[found->detach].storage.value();
  SECTION("no second home") {
    plan.second_homes[s].reset();
    const auto violation = schedule::validate(plan);
    REQUIRE(violation);
    CHECK(violation->rule == "copies");
  }
  SECTION("a second home on flash") {
    plan.second_homes[s]->tier = schedule::HomeTier::kFlash;
    const auto violation = schedule::validate(plan);
    REQUIRE(violation);
    CHECK(violation->rule == "copies");
  }
  SECTION("both homes at the same bytes") {
    plan.second_homes[s] = plan.homes[s];
    CHECK(schedule::validate(plan));
  }
  SECTION("an epilogue that stores one home") {
    const auto second = std::find_if(plan.epilogue.begin(), plan.epilogue.end(),
                                     [](const auto& op) { return op.copy == 1; });
    REQUIRE(second != plan.epilogue.end());
    plan.epilogue.erase(second);
    const auto violation = schedule::validate(plan);
    REQUIRE(violation);
    CHECK(violation->rule == "lost-value");
  }
  SECTION("a prefetch that names a copy") {
    const auto fetch =
        std::find_if(plan.cache_ops.begin(), plan.cache_ops.end(),
                     [](const auto& op) { return op.kind == CacheOpKind::kPrefetch; });
    REQUIRE(fetch != plan.cache_ops.end());
    fetch->copy = 1;
    const auto violation = schedule::validate(plan);
    REQUIRE(violation);
    CHECK(violation->rule == "copies");
  }
}

/// The value is on the device from its write on, and leaves once: only the order of its two Stores
/// and its Detach is at stake.
TEST_CASE("copies: a second store that another event overtakes is refused") {
  auto found = find_detach();
  REQUIRE(found);
  Schedule& plan = found->plan;
  // The Detach waits for the first Store alone, the second one for the Detach: as late as can be.
  auto& refs = plan.cache_ops[found->detach].after_cache_ops;
  std::erase_if(refs, [&](const auto& ref) { return ref.op.value() == found->second_store; });
  plan.cache_ops[found->second_store].after_cache_ops.push_back(
      {schedule::CacheOpIndex(static_cast<std::uint32_t>(found->detach)), false});
  CHECK(schedule::validate(plan));
}

TEST_CASE("copies: weights and optimizer state get two where there are two failure domains") {
  const Graph graph = random_graph(3, 16);
  Hardware hardware = one_tier(1'000'000'000);
  analyzer::Options options;
  options.device_budget_bytes = align_up(analyzer::peak_unmanaged_bytes(graph), 64);
  const auto copies_with = [&](std::uint32_t domains) {
    hardware.failure_domains = domains;
    const auto outcome = analyzer::analyze(graph, hardware, options);
    REQUIRE(outcome);
    return std::get<Schedule>(*outcome);
  };
  CHECK(copies_with(0).second_homes.empty());
  CHECK(copies_with(1).second_homes.empty());
  const Schedule plan = copies_with(2);
  for (std::size_t s = 0; s < plan.storages.size(); ++s) {
    const Storage& storage = plan.storages[s];
    const bool state = storage.persistent && (storage.kind == StorageKind::kWeight ||
                                              storage.kind == StorageKind::kOptimizerState);
    const bool second =
        schedule::second_home(plan, StorageIndex(static_cast<std::uint32_t>(s))).has_value();
    CHECK(second == state);
  }
}

TEST_CASE("copies: without room for the default's second homes a plan has one home each") {
  const Graph graph = random_graph(3, 16);
  Hardware hardware = one_tier(1'000'000'000);
  hardware.failure_domains = 2;
  analyzer::Options options;
  options.device_budget_bytes = align_up(analyzer::peak_unmanaged_bytes(graph), 64);
  const auto planned = [&](std::uint64_t capacity_bytes) {
    hardware.local_ddr->capacity_bytes = capacity_bytes;
    auto outcome = analyzer::analyze(graph, hardware, options);
    REQUIRE(outcome);
    return *std::move(outcome);
  };
  const auto is_plan = [](const analyzer::Outcome& outcome) {
    return std::holds_alternative<Schedule>(outcome);
  };
  std::uint64_t least = 0;
  for (const Storage& storage : graph.storages) least += align_up(storage.bytes, 64);
  while (is_plan(planned(least * 7 / 8))) {
    least = least * 7 / 8;
    REQUIRE(least > 0);
  }
  CHECK(std::get<Schedule>(planned(least)).second_homes.empty());
  options.copies = *analyzer::parse_copies({"WEIGHT=2", "OPTIMIZER_STATE=2"});
  CHECK_FALSE(is_plan(planned(least)));
  CHECK_FALSE(std::get<Schedule>(planned(4 * least)).second_homes.empty());
}

TEST_CASE("copies: --copies takes kinds by name, and a number for persistent state") {
  const auto copies = analyzer::parse_copies({"activation=2", "WEIGHT=1"});
  REQUIRE(copies);
  CHECK((*copies)[static_cast<std::size_t>(StorageKind::kActivation)] == 2);
  CHECK((*copies)[static_cast<std::size_t>(StorageKind::kWeight)] == 1);
  const auto all = analyzer::parse_copies({"2"});
  REQUIRE(all);
  Graph graph;
  graph.storages.push_back({0, "m", 64, StorageKind::kOptimizerState, true, false});
  graph.storages.push_back({1, "kv", 64, StorageKind::kKvCache, false, false});
  const auto doubled = analyzer::with_copies(graph, *all, one_tier(1'000'000));
  REQUIRE(doubled);
  CHECK(doubled->storages[0].copies == 2);
  CHECK(doubled->storages[1].copies == 1);
  CHECK_FALSE(analyzer::parse_copies({"WEIGHT=3"}));
  CHECK_FALSE(analyzer::parse_copies({"WIGHT=2"}));
  CHECK_FALSE(analyzer::parse_copies({""}));
}

TEST_CASE("copies: a tier too small for second homes is named with what it needs") {
  Graph graph = random_graph(5, 16);
  Hardware hardware = one_tier(1'000'000'000);
  analyzer::Options options;
  options.device_budget_bytes = align_up(analyzer::peak_unmanaged_bytes(graph), 64);
  options.copies = two_of_all();
  hardware.local_ddr->capacity_bytes = 64;
  const auto outcome = analyzer::analyze(graph, hardware, options);
  REQUIRE(outcome);
  const auto* const infeasible = std::get_if<analyzer::Infeasible>(&*outcome);
  REQUIRE(infeasible != nullptr);
  CHECK(infeasible->tier == "local_ddr");
  CHECK(infeasible->needs_bytes > 64);
}

}  // namespace
}  // namespace ho::test
