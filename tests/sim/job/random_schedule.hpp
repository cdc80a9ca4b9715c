#pragma once

#include <cstdint>

#include "common/base/prng.hpp"
#include "common/model/graph.hpp"
#include "common/schedule/schedule.hpp"

namespace ho::test {

/// A random step and a simple legal plan for it, independent of the analyzer: it fetches the
/// operands of each op, evicts other storages when it needs room, and keeps nothing on the device
/// between steps. Equal states of the generator give equal schedules.
[[nodiscard]] schedule::Schedule random_schedule(Prng& random);
/// Another plan of the same job: its persistent storages are those of `like`, all else is new.
[[nodiscard]] schedule::Schedule random_schedule_like(const schedule::Schedule& like, Prng& random);

/// The graph of a schedule: its ops in program order, without the plan.
[[nodiscard]] Graph graph_of(const schedule::Schedule& schedule);

}  // namespace ho::test
