#pragma once

#include <cstdint>
#include <vector>

#include "common/model/graph.hpp"
#include "tools/analyzer/problem/liveness.hpp"

namespace ho::analyzer {

/// Positions of a step at which the value of a gap may be missing, both included. A gap that wraps
/// has two.
struct Absence {
  std::uint32_t first = 0;
  std::uint32_t last = 0;
  std::uint32_t gap = 0;
};

/// What a step needs beyond its budget. README.md has the argument, "The lower bound".
struct Excess {
  std::vector<double> bytes;      ///< per position: E_m
  std::vector<Absence> absences;  ///< by first position
};
[[nodiscard]] Excess excess_of(const Lifetimes& life, const Graph& graph,
                               std::uint64_t budget_bytes);

/// Bytes that a step moves in each direction at least, whenever it moves them.
struct Traffic {
  double supplied_bytes = 0;  ///< INPUTs, from where their homes are
  double read_bytes = 0;      ///< other ones
  double write_bytes = 0;
};
/// A linear program: at each position values in gaps are missing to the extent of the excess; what
/// is missing of a value is read once for each gap, and written once however many gaps it has (from
/// the first of them to the last it may be missing). Values may be missing in part. Its optimum, up
/// to what values cost that are missing where the steps that are looked at begin.
/// Cost: O(S log S), S = gaps and positions of 64 steps, of fewer above 10,000 ops, of 3 at least.
/// @param excess  the step's, for a budget
[[nodiscard]] Traffic least_traffic(const Lifetimes& life, const Graph& graph,
                                    const Excess& excess);

}  // namespace ho::analyzer
