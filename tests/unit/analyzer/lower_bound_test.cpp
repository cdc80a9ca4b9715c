#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/unit/analyzer/graphs.hpp"
#include "tools/analyzer/analyzer.hpp"
#include "tools/analyzer/emit.hpp"
#include "tools/analyzer/liveness.hpp"
#include "tools/analyzer/planner.hpp"
#include "tools/analyzer/timeline.hpp"

using namespace ho;
using analyzer::Gap;
using schedule::Schedule;

namespace {

/// Places one moved gap may have: store after, held until, held again from.
struct Placing {
  std::int64_t store_after;
  std::int64_t detach_by;
  std::int64_t fetch_from;
};

/// All plans of a tiny graph without persistent storages: every set of moved gaps, every placing
/// of each, byte sums within the budget (offsets do not count, so this is at least as good as any
/// plan). Shortest step by the same replay that ranks variants.
class Exhaustive {
 public:
  Exhaustive(const Graph& graph, const Hardware& hardware, std::uint64_t budget)
      : graph_(graph),
        life_(analyzer::lifetimes_of(graph, 1)),
        tiers_(analyzer::plan_tiers(hardware)),
        budget_(static_cast<std::int64_t>(budget)) {
    for (const Op& op : graph.ops) durations_.push_back(static_cast<std::int64_t>(op.duration_ns));
    choice_.moved.assign(life_.gaps.size(), 0);
    choice_.detach_by.assign(life_.gaps.size(), 0);
    choice_.fetch_from.assign(life_.gaps.size(), 0);
    choice_.store_after.assign(life_.versions, analyzer::kNoStore);
    choice_.store_slot.assign(life_.versions, 0);
    choice_.stall_ns.assign(life_.positions, 0);
    resident_.assign(life_.live.begin(), life_.live.end());
    for (std::uint32_t g = 0; g < life_.gaps.size(); ++g) {
      if (life_.gaps[g].movable) movable_.push_back(g);
    }
  }
  /// How many plans there are, about.
  [[nodiscard]] double size() const {
    double product = 1;
    for (const std::uint32_t g : movable_) product *= 1 + static_cast<double>(placings(g).size());
    return product;
  }
  /// @return a negative number where no plan fits.
  double best() {
    descend(0);
    return best_;
  }

 private:
  [[nodiscard]] std::vector<Placing> placings(std::uint32_t g) const {
    const Gap& gap = life_.gaps[g];
    std::vector<Placing> all;
    for (std::int64_t by = gap.from; by + 1 < gap.to; ++by) {
      for (std::int64_t from = by + 2; from <= gap.to; ++from) {
        for (std::int64_t after = gap.written; after <= by; ++after)
          all.push_back({after, by, from});
      }
    }
    return all;
  }
  void shift(const Gap& gap, const Placing& placing, std::int64_t sign) {
    for (std::int64_t p = placing.detach_by + 1; p < placing.fetch_from; ++p) {
      resident_[static_cast<std::size_t>(p)] +=
          sign * static_cast<std::int64_t>(life_.bytes[gap.storage]);
    }
  }
  void descend(std::size_t next) {
    if (next == movable_.size()) {
      if (*std::max_element(resident_.begin(), resident_.end()) > budget_) return;
      const std::vector<std::uint8_t> tier_of(graph_.storages.size(), 0);
      const std::vector<std::uint64_t> home(tiers_.size(), 0);
      const std::vector<std::uint8_t> is_static(graph_.storages.size(), 0);
      const analyzer::ChooseInput in{life_, durations_, tiers_, tier_of, home, is_static};
      const auto draft = analyzer::emit(graph_, in, choice_, {}, {});
      const auto step = static_cast<double>(analyzer::steady_step_ns(draft, in, {}));
      if (best_ < 0 || step < best_) best_ = step;
      return;
    }
    descend(next + 1);
    const std::uint32_t g = movable_[next];
    const Gap& gap = life_.gaps[g];
    const std::int64_t stored = choice_.store_after[gap.version];
    for (const Placing& placing : placings(g)) {
      // A value that an earlier gap stored needs no second Store.
      if (stored != analyzer::kNoStore && placing.store_after != gap.written) continue;
      choice_.moved[g] = 1;
      choice_.detach_by[g] = placing.detach_by;
      choice_.fetch_from[g] = placing.fetch_from;
      if (stored == analyzer::kNoStore) choice_.store_after[gap.version] = placing.store_after;
      shift(gap, placing, -1);
      descend(next + 1);
      shift(gap, placing, 1);
      choice_.store_after[gap.version] = stored;
      choice_.moved[g] = 0;
    }
  }

  const Graph& graph_;
  analyzer::Lifetimes life_;
  std::vector<analyzer::PlanTier> tiers_;
  std::int64_t budget_;
  std::vector<std::int64_t> durations_;
  std::vector<std::uint32_t> movable_;
  analyzer::Choice choice_;
  std::vector<std::int64_t> resident_;
  double best_ = -1;
};

}  // namespace

TEST_CASE("lower bound: is compute time where everything fits") {
  const Graph graph = test::transformer(2, 2);
  std::uint64_t compute = 0;
  for (const Op& op : graph.ops) compute += op.duration_ns;
  Hardware hardware = test::one_tier(1'000'000'000'000'000);
  CHECK(analyzer::lower_bound_ns(graph, hardware, std::uint64_t{1} << 40U) == compute);
}

TEST_CASE("lower bound: counts the fetch that one missing value needs between two ops") {
  // a (1000 bytes) is written first and read last; the middle op needs the whole budget.
  test::GraphBuilder build;
  const auto a = build.storage(1000, StorageKind::kActivation);
  const auto b = build.storage(1500, StorageKind::kActivation);
  build.op(100, {}, {a});
  build.op(100, {}, {b});
  build.op(100, {a}, {});
  const Graph graph = build.take();
  // At 1 byte/ns: excess of op 1 is 1000 bytes, so 1000 ns of store before it, and of its 100 ns
  // and what follows 1000 ns of fetch: 100 + 1000 + 1000 + 100.
  const std::uint64_t bound = analyzer::lower_bound_ns(graph, test::one_tier(1'000'000'000), 1500);
  CHECK(bound >= 2198);
  CHECK(bound <= 2200);
}

TEST_CASE("lower bound: no plan of a tiny graph is below it, and ours come near the best") {
  int planned = 0;
  double ours = 0;
  double optimal = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    Prng prng(seed);
    test::GraphBuilder build;
    std::vector<StorageIndex> values;
    const std::uint64_t ops = 4 + prng.below(4);
    for (std::uint64_t p = 0; p < ops; ++p) {
      std::vector<StorageIndex> reads;
      if (!values.empty()) reads.push_back(values[prng.below(values.size())]);
      const auto next = build.storage(100 + prng.below(900), StorageKind::kActivation);
      build.op(prng.below(1500), reads, {next});
      values.push_back(next);
    }
    const Graph graph = build.take();
    const Hardware hardware = test::one_tier(1'000'000'000);
    const std::uint64_t budget =
        analyzer::peak_unmanaged_bytes(graph) * (60 + 10 * (seed % 4)) / 100;
    Exhaustive exhaustive(graph, hardware, budget);
    if (exhaustive.size() > 1500) continue;
    INFO("seed " << seed);
    const double best = exhaustive.best();
    const auto bound = static_cast<double>(analyzer::lower_bound_ns(graph, hardware, budget));
    if (best >= 0) CHECK(bound <= best);
    const auto outcome = analyzer::analyze(graph, hardware, {budget, 1});
    REQUIRE(outcome.ok());
    if (!std::holds_alternative<Schedule>(*outcome)) continue;
    // A refined order may do what program order cannot; the plan then tells that order's bound.
    const auto& prediction = std::get<Schedule>(*outcome).prediction;
    if (prediction.moved_ops == 0) REQUIRE(best >= 0);
    if (best < 0) continue;
    const auto step = static_cast<double>(prediction.step_ns);
    CHECK(prediction.lower_bound_ns <= prediction.step_ns);
    if (prediction.moved_ops == 0) CHECK(bound <= step);
    ours += step;
    optimal += best;
    ++planned;
  }
  CAPTURE(planned, ours / optimal);
  CHECK(planned > 100);
  CHECK(ours <= 1.10 * optimal);
}
