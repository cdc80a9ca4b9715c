#pragma once

#include <cstdint>

#include "common/base/prng.hpp"
#include "common/model/graph.hpp"
#include "common/schedule/schedule.hpp"

namespace ho::test {

/// A random step and a simple legal plan for it, made independently of the analyzer: every op's
/// operands are brought in ahead of it, others are thrown out when room is needed, and nothing
/// stays on the device between steps. Same generator state, same schedule.
[[nodiscard]] schedule::Schedule random_schedule(Prng& random);

/// The graph that a schedule was made for: its ops in program order, without the plan.
[[nodiscard]] Graph graph_of(const schedule::Schedule& schedule);

}  // namespace ho::test
