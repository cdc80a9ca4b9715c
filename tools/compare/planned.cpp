#include "tools/compare/planned.hpp"

#include "proto/files/convert.hpp"

namespace ho::gpt {

using hyperoffload::Plan;
using hyperoffload::Runtime;

Result<std::unique_ptr<Planned>> Planned::create(const Model& model, hyperoffload::Pool& pool,
                                                 const Arena& arena,
                                                 const schedule::Schedule& schedule) {
  HO_CHECK(schedule.storages.size() == model.graph.storages.size());
  const std::string bytes = encode_schedule(schedule);
  auto made = guarded([&] {
    Runtime runtime(pool, arena.data(), arena.bytes());
    Plan plan(runtime, bytes.data(), bytes.size());
    return std::unique_ptr<Planned>(new Planned(std::move(runtime), std::move(plan)));
  });
  if (!made) return made.error().at("load schedule");
  return made;
}

std::uint32_t Planned::position_count() const { return plan_.position_count(); }

OpIndex Planned::op_at(std::uint32_t position) const {
  return OpIndex(plan_.position_op(position));  // the model's op ids are its indices
}

Result<void> Planned::fill(StorageIndex storage, std::span<const std::byte> value) {
  return guarded([&] { plan_.write(storage.value(), value.data(), value.size()); });
}

Result<void> Planned::begin_step() {
  return guarded([this] { plan_.step_begin(); });
}

Result<void> Planned::before(std::uint32_t position) {
  return guarded([&] { plan_.before(position); });
}

void* Planned::operand(std::uint32_t position, StorageIndex storage) {
  return plan_.operand(position, storage.value());
}

Result<void> Planned::after(std::uint32_t position) {
  return guarded([&] { plan_.after(position); });
}

Result<void> Planned::end_step() {
  return guarded([this] { plan_.step_end(); });
}

Result<Usage> Planned::usage() const {
  return guarded([this] {
    const ho_counters counters = plan_.counters();
    return Usage{counters.peak_device_bytes, counters.stall_ns,       counters.prefetch_bytes,
                 counters.store_bytes,       counters.stage_in_bytes, counters.stage_out_bytes};
  });
}

Result<schedule::MeasuredStep> Planned::timeline() const {
  return guarded([this] {
    const Plan::Timeline timeline = plan_.timeline();
    schedule::MeasuredStep step;
    for (const ho_span& op : timeline.ops) {
      step.ops.push_back({op.start_ns, op.end_ns});
      step.stall_ns.push_back(op.stall_ns);
      step.awaited_bytes.push_back(op.bytes);
    }
    for (const ho_span& cache_op : timeline.cache_ops) {
      step.cache_ops.push_back({cache_op.start_ns, cache_op.end_ns});
      step.queue_ns.push_back(cache_op.start_ns - cache_op.queued_ns);
      step.cache_op_stall_ns.push_back(cache_op.stall_ns);
    }
    return step;
  });
}

}  // namespace ho::gpt
