#include "tools/compare/job.hpp"

#include <chrono>

#include "common/base/clock.hpp"

namespace ho::gpt {
namespace {

double milliseconds(Duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

}  // namespace

Job::Job(const Model& model, const Text& text, Residence& residence, const std::atomic<bool>& stop)
    : model_(model),
      text_(text),
      residence_(residence),
      stop_(stop),
      tokens_(std::size_t{model.options.batch} * model.options.seq),
      targets_(tokens_.size()) {}

Result<void> Job::initialise() {
  std::vector<std::byte> value;
  for (const Storage& storage : model_.graph.storages) {
    if (!storage.persistent) continue;
    if (stop_) return Error(Errc::kCanceled, "stopped by a signal");
    value.resize(storage.bytes);
    initial_value(model_, StorageIndex(storage.id), value);
    auto filled = residence_.fill(StorageIndex(storage.id), value);
    if (!filled) return filled.error().at(storage.name);
  }
  return {};
}

Result<void> Job::fill_inputs() {
  text_.batch(model_.options, steps_, tokens_, targets_);
  auto filled = residence_.fill(model_.tokens, std::as_bytes(std::span(tokens_)));
  if (!filled) return filled;
  return residence_.fill(model_.targets, std::as_bytes(std::span(targets_)));
}

Result<void> Job::run(std::uint32_t position, StepContext& context,
                      std::span<std::uint64_t> kernel_ns) {
  if (stop_) return Error(Errc::kCanceled, "stopped by a signal");
  auto ready = residence_.before(position);
  if (!ready) return ready;
  const OpIndex op = residence_.op_at(position);
  const ModelOp& model_op = model_.ops[op.value()];
  pointers_.clear();
  for (const StorageIndex storage : model_op.operands) {
    pointers_.push_back(residence_.operand(position, storage));
    HO_CHECK(pointers_.back() != nullptr);
  }
  const SteadyClock clock;
  const TimePoint start = clock.now();
  model_op.kernel(pointers_, context);
  if (!kernel_ns.empty()) {
    kernel_ns[op.value()] = static_cast<std::uint64_t>((clock.now() - start).count());
  }
  return residence_.after(position);
}

Result<StepRecord> Job::step(std::span<std::uint64_t> kernel_ns) {
  const SteadyClock clock;
  auto before = residence_.usage();
  if (!before) return before.error();
  const TimePoint start = clock.now();
  auto filled = fill_inputs();
  if (!filled) return filled.error();
  auto begun = residence_.begin_step();
  if (!begun) return begun.error();
  StepContext context = step_context(model_, steps_);
  for (std::uint32_t p = 0; p < residence_.position_count(); ++p) {
    auto ran = run(p, context, kernel_ns);
    if (!ran) return ran.error();
  }
  auto ended = residence_.end_step();
  if (!ended) return ended.error();
  StepRecord record;
  record.step_ms = milliseconds(clock.now() - start);
  ++steps_;
  auto after = residence_.usage();
  if (!after) return after.error();
  record.loss = context.loss;
  record.stall_ms = static_cast<double>(after->stall_ns - before->stall_ns) * 1e-6;
  record.prefetch_bytes = after->prefetch_bytes - before->prefetch_bytes;
  record.store_bytes = after->store_bytes - before->store_bytes;
  record.stage_in_bytes = after->stage_in_bytes - before->stage_in_bytes;
  record.stage_out_bytes = after->stage_out_bytes - before->stage_out_bytes;
  return record;
}

}  // namespace ho::gpt
