#pragma once

#include <cstdint>

#include "common/base/result.hpp"
#include "common/model/graph.hpp"
#include "common/model/hardware.hpp"
#include "tools/analyzer/problem/options.hpp"

namespace ho::analyzer {

/// Largest sum over ops, in program order, of persistent storages (all step long) and
/// non-persistent ones from first write to last access, both included, unaligned. An INPUT counts
/// from its first access, not from the step's start, although it is supplied before.
[[nodiscard]] std::uint64_t peak_unmanaged_bytes(const Graph& graph);

/// Whether any storage is to have two homes on this hardware (Options::copies). A plan goes without
/// where only the default gives them, and finds no room.
[[nodiscard]] bool gives_copies(const Graph& graph, const CopiesByKind& wanted,
                                const Hardware& hardware);

/// Bytes of the largest op's operands with what cannot leave the device then, unaligned. No plan
/// fits in less.
[[nodiscard]] std::uint64_t largest_op_bytes(const Graph& graph);

/// Compiles a schedule: lifetimes, decisions, cache ops, offsets. Then simulates it for
/// `prediction` and proves it with schedule::validate() before it returns it. Pure and
/// deterministic.
/// @return kInvalidArgument for a graph or hardware that breaks the rules of FORMATS.md.
[[nodiscard]] Result<Outcome> analyze(const Graph& graph, const Hardware& hardware,
                                      const Options& options);

/// How long all ops take together, at most UINT64_MAX.
[[nodiscard]] std::uint64_t compute_ns(const Graph& graph);

/// A lower bound of the step of all legal schedules in program order without recompute that keep
/// the hints, for this memory and these links.
[[nodiscard]] std::uint64_t lower_bound_ns(const Graph& graph, const Hardware& hardware,
                                           std::uint64_t device_budget_bytes);

}  // namespace ho::analyzer
