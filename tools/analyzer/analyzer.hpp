#pragma once

#include <cstdint>

#include "common/base/result.hpp"
#include "common/model/graph.hpp"
#include "common/model/hardware.hpp"
#include "tools/analyzer/problem/options.hpp"

namespace ho::analyzer {

/// Largest sum over ops, in program order, of persistent storages (all step long) and
/// non-persistent ones from first write to last access, both included, unaligned. INPUT: from the
/// step's start (it is supplied before) is NOT counted; it counts from its first access like the
/// others.
[[nodiscard]] std::uint64_t peak_unmanaged_bytes(const Graph& graph);

/// Compiles a schedule: lifetimes, choice, transfers on channels, offsets; then simulates it for
/// `prediction` and proves it with schedule::validate() before giving it out. Pure and
/// deterministic.
/// @return kInvalidArgument for a graph or hardware that breaks the rules of FORMATS.md.
[[nodiscard]] Result<Outcome> analyze(const Graph& graph, const Hardware& hardware,
                                      const Options& options);

/// A bound no legal schedule in program order without recompute can beat, for this memory and these
/// links.
[[nodiscard]] std::uint64_t lower_bound_ns(const Graph& graph, const Hardware& hardware,
                                           std::uint64_t device_budget_bytes);

}  // namespace ho::analyzer
