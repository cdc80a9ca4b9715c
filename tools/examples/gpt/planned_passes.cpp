#include "tools/examples/gpt/planned_passes.hpp"

#include <algorithm>
#include <cctype>
#include <variant>

#include "common/base/check.hpp"
#include "common/base/clock.hpp"
#include "common/base/units.hpp"
#include "proto/files/convert.hpp"
#include "tools/analyzer/analyzer.hpp"

namespace ho::gpt {
namespace {

std::string kind_of(const Op& op) {
  std::string kind = op.phase + " ";
  for (const char letter : op.name) {
    if (std::isdigit(static_cast<unsigned char>(letter)) == 0) kind += letter;
  }
  return kind;
}

/// The same plan for another group: storages are shared by name.
std::string encode_for(schedule::Schedule schedule, std::uint32_t group) {
  const std::string first = "group0.";
  for (Storage& storage : schedule.storages) {
    if (!storage.name.starts_with(first)) continue;
    storage.name = "group" + std::to_string(group) + "." + storage.name.substr(first.size());
  }
  return encode_schedule(schedule);
}

}  // namespace

Result<std::unique_ptr<PlannedPasses>> PlannedPasses::create(const DecoderOptions& options,
                                                             hyperoffload::Pool& pool,
                                                             const Hardware& hardware,
                                                             std::uint32_t prefill_rows,
                                                             const std::function<bool()>& stopped) {
  auto arena = Arena::create(hardware.device_bytes);
  if (!arena) return arena.error();
  std::unique_ptr<PlannedPasses> made(
      new PlannedPasses(options, hardware, std::move(arena).value(), pool));
  const auto times = made->measure();
  if (!times) return times.error();
  made->plans_.clear();
  made->swap_ns_ = 0;
  // The largest first, because homes in the pool are allocated only once.
  for (std::uint32_t b = options.model.seq / options.block_rows; b > 0; --b) {
    for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
      if (stopped()) return Error(Errc::kCanceled, "stopped by a signal");
      if (phase == Phase::kPrefill && (b - 1) * options.block_rows >= prefill_rows) continue;
      if (auto ok = made->plan({phase, b}, *times, options.groups); !ok) return ok.error();
    }
  }
  made->write_weights();
  return made;
}

/// Runs a full block of each phase under plans with guessed durations.
Result<PlannedPasses::OpTimes> PlannedPasses::measure() {
  OpTimes times;
  const std::vector<std::uint32_t> starts(options_.model.batch, 0);
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    if (auto ok = plan({phase, 1}, {}, 1); !ok) return ok.error();
    const std::uint32_t rows = phase == Phase::kPrefill ? options_.block_rows : 1;
    const std::vector<std::int32_t> tokens(std::size_t{options_.model.batch} * rows, 0);
    StepContext context;
    context.begin = options_.block_rows - rows;
    context.rows = rows;
    context.starts = starts;
    measured_ = &times;
    for (int i = 0; i < 2; ++i) {  // the first run meets cold caches
      if (auto ok = run({phase, 0, 1}, tokens, context); !ok) return ok.error();
    }
    measured_ = nullptr;
  }
  return times;
}

/// Plans a bucket and loads it for the first `groups` groups.
Result<void> PlannedPasses::plan(const Bucket& bucket, const OpTimes& times, std::uint32_t groups) {
  auto model = build_pass(options_, {bucket.first, 0, bucket.second});
  if (!model) return model.error();
  for (Op& op : model->graph.ops) {
    const auto known = times.find(kind_of(op));
    if (known != times.end()) {
      op.duration_ns = known->second;
      continue;
    }
    for (const StorageIndex s : model->ops[op.id].operands) {
      op.duration_ns += 1 + model->graph.storages[s.value()].bytes / 4;  // 4 GB/s
    }
  }
  const auto outcome = analyzer::analyze(model->graph, hardware_, {hardware_.device_bytes});
  if (!outcome) return outcome.error().at("analyze");
  if (const auto* why = std::get_if<analyzer::Infeasible>(&*outcome)) {
    return Error(Errc::kOutOfRange,
                 "op " + why->op_name + " needs " + format_bytes(why->needs_bytes) + " of tier " +
                     why->tier + ", the device budget is " + format_bytes(hardware_.device_bytes));
  }
  for (std::uint32_t g = 0; g < groups; ++g) {
    const std::string bytes = encode_for(std::get<schedule::Schedule>(*outcome), g);
    const Pass pass{bucket.first, g, bucket.second};
    plans_.erase(pass);
    plans_.emplace(pass, hyperoffload::Plan(runtime_, bytes.data(), bytes.size()));
  }
  models_.insert_or_assign(bucket, std::move(model).value());
  return {};
}

void PlannedPasses::write_weights() {
  const Model& model = models_.at({Phase::kDecode, 1});
  hyperoffload::Plan& plan = plans_.at({Phase::kDecode, 0, 1});
  std::vector<std::byte> value;
  for (const Storage& storage : model.graph.storages) {
    if (!storage.persistent) continue;
    value.resize(storage.bytes);
    initial_value(model, StorageIndex(storage.id), value);
    plan.write(storage.id, value.data(), value.size());
  }
}

Result<void> PlannedPasses::run(const Pass& pass, std::span<const std::int32_t> tokens,
                                StepContext& context) {
  const SteadyClock clock;
  const Model& model = models_.at({pass.phase, pass.blocks});
  hyperoffload::Plan& plan = plans_.at(pass);
  plan.write(model.tokens.value(), tokens.data(), tokens.size_bytes());
  const TimePoint start = clock.now();
  plan.step_begin();
  swap_ns_ += static_cast<std::uint64_t>((clock.now() - start).count());
  std::vector<void*> operands;
  for (std::uint32_t p = 0; p < plan.position_count(); ++p) {
    plan.before(p);
    const std::uint32_t op = plan.position_op(p);  // a plan may reorder ops, and repeat them
    operands.clear();
    for (const StorageIndex s : model.ops[op].operands) {
      operands.push_back(plan.operand(p, s.value()));
    }
    const TimePoint begun = clock.now();
    model.ops[op].kernel(operands, context);
    if (measured_ != nullptr) {
      const auto took = static_cast<std::uint64_t>((clock.now() - begun).count());
      const auto known = measured_->try_emplace(kind_of(model.graph.ops[op]), UINT64_MAX).first;
      known->second = std::clamp<std::uint64_t>(took, 1, known->second);
    }
    plan.after(p);
  }
  plan.step_end();
  return {};
}

PassUsage PlannedPasses::usage() const {
  PassUsage usage;
  usage.stall_ns = swap_ns_;
  for (const auto& [pass, plan] : plans_) {
    const ho_counters counters = plan.counters();
    usage.peak_device_bytes = std::max(usage.peak_device_bytes, counters.peak_device_bytes);
    usage.stall_ns += counters.stall_ns;
    usage.prefetch_bytes += counters.prefetch_bytes;
    usage.store_bytes += counters.store_bytes;
  }
  return usage;
}

}  // namespace ho::gpt
