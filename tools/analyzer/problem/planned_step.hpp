#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/model/graph.hpp"
#include "common/schedule/schedule.hpp"

namespace ho::analyzer {

/// The step in the schedule's order, as a graph of its own: an op that runs twice stands there
/// twice. The schedule's indices are valid (detail::check_indices()).
[[nodiscard]] Graph refined_graph(const schedule::Schedule& schedule);

/// The same in program order, each op once.
[[nodiscard]] Graph program_order_graph(const schedule::Schedule& schedule);

/// Where each op runs first, in program order.
[[nodiscard]] std::vector<std::uint32_t> first_positions(const schedule::Schedule& schedule);

/// Per position: of the cache ops that it waits for, the one that ends last. A Detach ends when its
/// write-back ends.
/// @param times  of the cache ops; those without one are left out
[[nodiscard]] std::vector<std::optional<schedule::CacheOpIndex>> last_awaited(
    const schedule::Schedule& schedule, const std::vector<schedule::MeasuredStep::Span>& times,
    std::uint64_t step_ns);
/// By the predicted times.
[[nodiscard]] std::vector<std::optional<schedule::CacheOpIndex>> last_awaited(
    const schedule::Schedule& schedule);

}  // namespace ho::analyzer
