#include "tools/examples/gpt/plan.hpp"

#include <algorithm>
#include <variant>

#include "common/base/clock.hpp"
#include "common/base/units.hpp"
#include "proto/files/convert.hpp"

namespace ho::gpt {

void guess_durations(Model& model) {
  for (Op& op : model.graph.ops) {
    if (op.duration_ns != 0) continue;
    for (const StorageIndex s : model.ops[op.id].operands) {
      op.duration_ns += 1 + model.graph.storages[s.value()].bytes / 4;
    }
  }
}

Result<schedule::Schedule> make_plan(const Graph& graph, const Hardware& hardware,
                                     const analyzer::CopiesByKind& copies) {
  analyzer::Options options;
  options.device_budget_bytes = hardware.device_bytes;
  options.copies = copies;
  auto outcome = analyzer::analyze(graph, hardware, options);
  if (!outcome) return outcome.error().at("analyze");
  if (const auto* why = std::get_if<analyzer::Infeasible>(&*outcome)) {
    return Error(Errc::kOutOfRange,
                 "op " + why->op_name + " needs " + format_bytes(why->needs_bytes) + " of tier " +
                     why->tier + ", the device budget is " + format_bytes(hardware.device_bytes));
  }
  return std::get<schedule::Schedule>(std::move(*outcome));
}

hyperoffload::Plan load(hyperoffload::Runtime& runtime, const schedule::Schedule& schedule) {
  const std::string bytes = encode_schedule(schedule);
  return {runtime, bytes.data(), bytes.size()};
}

void write_initial_values(hyperoffload::Plan& plan, const Model& model) {
  std::vector<std::byte> value;
  for (const Storage& storage : model.graph.storages) {
    if (!storage.persistent) continue;
    value.resize(storage.bytes);
    initial_value(model, StorageIndex(storage.id), value);
    plan.write(storage.id, value.data(), value.size());
  }
}

Result<void> run_ops(hyperoffload::Plan& plan, const Model& model, StepContext& context,
                     const std::function<bool()>& stopped, OpTimes* times) {
  const SteadyClock clock;
  std::vector<void*> operands;
  for (std::uint32_t p = 0; p < plan.position_count(); ++p) {
    if (stopped()) return Error(Errc::kCanceled, "stopped by a signal");
    plan.before(p);
    const std::uint32_t op = plan.position_op(p);  // a plan may reorder ops, and repeat them
    operands.clear();
    for (const StorageIndex s : model.ops[op].operands) {
      operands.push_back(plan.operand(p, s.value()));
    }
    const TimePoint begun = clock.now();
    model.ops[op].kernel(operands, context);
    if (times != nullptr) {
      const auto took = static_cast<std::uint64_t>((clock.now() - begun).count());
      times->resize(model.ops.size(), UINT64_MAX);
      (*times)[op] = std::clamp<std::uint64_t>(took, 1, (*times)[op]);
    }
    plan.after(p);
  }
  return {};
}

}  // namespace ho::gpt
