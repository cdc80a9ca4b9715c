#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "common/model/graph.hpp"
#include "tools/analyzer/orders/arrange.hpp"
#include "tools/analyzer/problem/decisions.hpp"
#include "tools/analyzer/problem/problem.hpp"

namespace ho::analyzer {

/// A value that can be made again before its next use instead of being kept or fetched.
struct Regain {
  std::uint32_t gap = 0;      ///< index into Lifetimes::gaps: the time it would not exist
  std::int64_t cost_ns = 0;   ///< of running again what makes it
  std::int64_t saved_ns = 0;  ///< of link time
};

/// What a search found about making a value again instead of moving it.
struct RunAgain {
  enum class Outcome : std::uint8_t {
    kSlower,      ///< it takes no less time than the link
    kNotShorter,  ///< tried; the step was not shorter
    kChosen,
  };
  std::uint32_t storage = 0;
  std::int64_t cost_ns = 0;   ///< the time to run again what makes it
  std::int64_t saved_ns = 0;  ///< link time; 0: without it there is no plan
  Outcome outcome = Outcome::kNotShorter;
};

/// Finds values that ops can make again, and from which inputs; ops are positions. A value of
/// references; they outlive it.
class Cones {
 public:
  /// O(accesses log n).
  Cones(const Graph& graph, const Lifetimes& lifetimes);

  /// The ops that make the value of gap `gap` again before its next use, in order, from what is
  /// still there; empty: impossible. O(those and what they read that is not there, each * log of
  /// its uses): however many others an op of them writes.
  [[nodiscard]] std::vector<std::uint32_t> to_regain(std::uint32_t gap) const;

  /// The same for the value of `storage` before `at`, where more is not there: `absent(s)`.
  /// O(operands of the ops found * log of the uses of each).
  [[nodiscard]] std::vector<std::uint32_t> to_regain(
      std::uint32_t storage, std::uint32_t at,
      const std::function<bool(std::uint32_t)>& absent) const;

 private:
  /// Whether op `writer` gives the same outputs when it runs again just before `at`.
  [[nodiscard]] bool repeatable(std::uint32_t writer, std::uint32_t at) const {
    return at <= repeatable_until_[writer];
  }
  /// Whether the storage's value lives at `at` anyway.
  [[nodiscard]] bool alive(std::uint32_t storage, std::uint32_t at) const;
  [[nodiscard]] std::uint32_t writer_before(std::uint32_t storage, std::uint32_t at) const;
  [[nodiscard]] bool may_be_made_twice(const Storage& storage) const;
  template <typename Gone>
  [[nodiscard]] std::vector<std::uint32_t> cone(std::uint32_t storage, std::uint32_t at,
                                                Gone&& gone) const;

  const Graph& graph_;
  const Lifetimes& life_;
  std::vector<std::uint32_t> repeatable_until_;  ///< per op; 0: never
  std::vector<std::uint32_t> dying_begin_;       ///< per op, into `dying_`; one more at the end
  std::vector<std::uint32_t> dying_;  ///< storages it reads that the step outlives, by last use
};

/// Gaps of `graph` (its ops by position) that end with a use of a value that `recomputable` ops
/// can make again from inputs that are still there, cheapest first, by cost per link time saved.
/// Only gaps that `decisions` move; if they move none (no plan), all that are long enough.
/// O(accesses log n).
[[nodiscard]] std::vector<Regain> regains(const Graph& graph, const Problem& input,
                                          const Decisions& decisions);

/// `list` with the ops that make the first `count` regains put in before the uses. What a
/// repeated op reads and `regains` also drops is made again with it. O(accesses).
[[nodiscard]] OpList with_recompute(const Graph& graph, const Lifetimes& lifetimes,
                                    const OpList& list, const std::vector<Regain>& regains,
                                    std::size_t count);

}  // namespace ho::analyzer
