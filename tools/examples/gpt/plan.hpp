#pragma once

#include <functional>
#include <hyperoffload/hyperoffload.hpp>

#include "common/model/hardware.hpp"
#include "common/schedule/schedule.hpp"
#include "tools/analyzer/analyzer.hpp"
#include "tools/examples/gpt/model.hpp"

// A model under a plan: the calls that a job makes, in the order of this file. The library throws
// hyperoffload::Error.
namespace ho::gpt {

/// Gives ops without a duration a guess: the bytes of their operands at 4 GB/s.
void guess_durations(Model& model);

/// @return kOutOfRange, with the op, if no plan keeps to hardware.device_bytes.
[[nodiscard]] Result<schedule::Schedule> make_plan(const Graph& graph, const Hardware& hardware,
                                                   const analyzer::CopiesByKind& copies = {});
[[nodiscard]] hyperoffload::Plan load(hyperoffload::Runtime& runtime,
                                      const schedule::Schedule& schedule);
/// Gives weights, optimizer state and KV caches their initial values. Between steps.
void write_initial_values(hyperoffload::Plan& plan, const Model& model);

/// Where run_ops() enters the shortest time of each kernel, by op.
using OpTimes = std::vector<std::uint64_t>;
/// Runs the ops of a step, between step_begin() and step_end().
/// @param stopped  asked before each op; true: kCanceled.
/// @param times  may be null
[[nodiscard]] Result<void> run_ops(hyperoffload::Plan& plan, const Model& model,
                                   StepContext& context, const std::function<bool()>& stopped,
                                   OpTimes* times);

}  // namespace ho::gpt
