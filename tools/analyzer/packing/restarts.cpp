#include "tools/analyzer/packing/restarts.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace ho::packing {
namespace {

/// Measured: successful runs end within two nodes per item; a few longer runs help the hardest
/// instances.
std::uint64_t nodes_of_run(std::uint64_t run, std::size_t items) {
  const std::uint64_t per_item = run % 16 == 15 ? 40 : run % 4 == 3 ? 10 : 3;
  return 64 + per_item * items;
}

}  // namespace

Restarts::Restarts(const Instance& instance, std::vector<double> lengths)
    : instance_(instance), search_(instance), lengths_(std::move(lengths)) {
  HO_CHECK(lengths_.size() == instance.items.size());
  for (const std::int64_t bytes : fullest_sections(instance)) {
    fullest_.push_back(static_cast<double>(bytes));
  }
}

Outcome Restarts::run(std::int64_t capacity_bytes, Budget& budget) {
  if (capacity_bytes < instance_.load_bytes) return Outcome::kNone;
  search_.set_capacity(capacity_bytes);
  const std::size_t n = instance_.items.size();
  while (!budget.spent()) {
    const std::vector<std::uint32_t> order = next_order();
    // One run in four follows its order even before lower offsets: some instances need that.
    const bool order_first = prng_.below(4) == 0;
    const std::uint64_t affordable = budget.left() / (30 * n) + 1;
    const Outcome outcome =
        search_.run(order, order_first ? ExactSearch::Prefer::kOrder : ExactSearch::Prefer::kLowest,
                    std::min(nodes_of_run(runs_++, n), affordable));
    budget.spend(30 * n * search_.nodes() + 300 * n);
    if (outcome != Outcome::kStopped) return outcome;
  }
  return Outcome::kStopped;
}

Layout Restarts::layout() const {
  Layout out{search_.offsets(), 0};
  for (std::size_t i = 0; i < out.offsets.size(); ++i) {
    out.height_bytes = std::max(out.height_bytes, out.offsets[i] + instance_.items[i].bytes);
  }
  return out;
}

/// Random weights: long items and those in the fullest sections come first, bytes may count either
/// way, plus some noise.
std::vector<std::uint32_t> Restarts::next_order() {
  const double by_length = 2 * prng_.unit() - 0.3;
  const double by_bytes = 0.8 * prng_.unit() - 0.3;
  const double by_fullest = 3 * (2 * prng_.unit() - 0.3);
  const double noise = 2 * prng_.unit() * prng_.unit();
  std::vector<double> key(lengths_.size());
  for (std::size_t i = 0; i < key.size(); ++i) {
    key[i] = by_length * std::log(lengths_[i]) +
             by_bytes * std::log(static_cast<double>(instance_.items[i].bytes)) +
             by_fullest * std::log(fullest_[i]) + noise * prng_.unit();
  }
  std::vector<std::uint32_t> order(key.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return key[a] > key[b]; });
  return order;
}

}  // namespace ho::packing
