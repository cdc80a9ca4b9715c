#include "tools/examples/gpt/planned.hpp"

#include "proto/convert.hpp"

namespace ho::gpt {

using hyperoffload::Runtime;

Result<std::unique_ptr<Planned>> Planned::create(const Model& model, hyperoffload::Pool& pool,
                                                 const Arena& arena,
                                                 const schedule::Schedule& schedule) {
  HO_CHECK(schedule.storages.size() == model.graph.storages.size());
  const std::string bytes = encode_schedule(schedule);
  auto runtime = guarded([&] {
    return std::make_unique<Runtime>(pool, bytes.data(), bytes.size(), arena.data(), arena.bytes());
  });
  if (!runtime) return runtime.error().at("load schedule");
  return std::unique_ptr<Planned>(new Planned(std::move(runtime).value()));
}

std::uint32_t Planned::position_count() const { return runtime_->position_count(); }

OpIndex Planned::op_at(std::uint32_t position) const {
  return OpIndex(runtime_->position_op(position));  // the model's op ids are its indices
}

Result<void> Planned::fill(StorageIndex storage, std::span<const std::byte> value) {
  return guarded([&] { runtime_->write(storage.value(), value.data(), value.size()); });
}

Result<void> Planned::begin_step() {
  return guarded([this] { runtime_->step_begin(); });
}

Result<void> Planned::before(std::uint32_t position) {
  return guarded([&] { runtime_->before(position); });
}

void* Planned::operand(std::uint32_t position, StorageIndex storage) {
  return runtime_->operand(position, storage.value());
}

Result<void> Planned::after(std::uint32_t position) {
  return guarded([&] { runtime_->after(position); });
}

Result<void> Planned::end_step() {
  return guarded([this] { runtime_->step_end(); });
}

Result<Usage> Planned::usage() const {
  return guarded([this] {
    const ho_counters counters = runtime_->counters();
    return Usage{counters.peak_device_bytes, counters.stall_ns,       counters.prefetch_bytes,
                 counters.store_bytes,       counters.stage_in_bytes, counters.stage_out_bytes};
  });
}

Result<schedule::MeasuredStep> Planned::timeline() const {
  return guarded([this] {
    const Runtime::Timeline timeline = runtime_->timeline();
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
