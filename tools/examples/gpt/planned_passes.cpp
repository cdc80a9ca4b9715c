#include "tools/examples/gpt/planned_passes.hpp"

#include <algorithm>
#include <cctype>

#include "common/base/clock.hpp"

namespace ho::gpt {
namespace {

std::string kind_of(const Op& op) {
  std::string kind = op.phase + " ";
  for (const char letter : op.name) {
    if (std::isdigit(static_cast<unsigned char>(letter)) == 0) kind += letter;
  }
  return kind;
}

/// The same plan for another group: plans share storages by name.
schedule::Schedule plan_for(schedule::Schedule schedule, std::uint32_t group) {
  const std::string first = "group0.";
  for (Storage& storage : schedule.storages) {
    if (!storage.name.starts_with(first)) continue;
    storage.name = "group" + std::to_string(group) + "." + storage.name.substr(first.size());
  }
  return schedule;
}

}  // namespace

Result<std::unique_ptr<PlannedPasses>> PlannedPasses::create(const DecoderOptions& options,
                                                             hyperoffload::Pool& pool,
                                                             const Hardware& hardware,
                                                             std::uint32_t prefill_rows,
                                                             const std::function<bool()>& stopped,
                                                             const analyzer::CopiesByKind& copies) {
  auto arena = Arena::create(hardware.device_bytes);
  if (!arena) return arena.error();
  std::unique_ptr<PlannedPasses> made(
      new PlannedPasses(options, hardware, std::move(arena).value(), pool, stopped, copies));
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
  write_initial_values(made->plans_.at({Phase::kDecode, 0, 1}),
                       made->models_.at({Phase::kDecode, 1}));
  return made;
}

/// Runs a full block of each phase under plans with guessed durations.
Result<PlannedPasses::KindTimes> PlannedPasses::measure() {
  KindTimes shortest;
  const std::vector<std::uint32_t> starts(options_.model.batch, 0);
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    if (auto ok = plan({phase, 1}, {}, 1); !ok) return ok.error();
    const std::uint32_t rows = phase == Phase::kPrefill ? options_.block_rows : 1;
    const std::vector<std::int32_t> tokens(std::size_t{options_.model.batch} * rows, 0);
    StepContext context;
    context.begin = options_.block_rows - rows;
    context.rows = rows;
    context.starts = starts;
    OpTimes times;
    for (int i = 0; i < 2; ++i) {  // the first run meets cold caches
      if (auto ok = run_timed({phase, 0, 1}, tokens, context, &times); !ok) return ok.error();
    }
    for (const Op& op : models_.at({phase, 1}).graph.ops) {
      std::uint64_t& known = shortest.try_emplace(kind_of(op), UINT64_MAX).first->second;
      known = std::min(known, times[op.id]);
    }
  }
  return shortest;
}

/// Plans a bucket and loads it for the first `groups` groups.
Result<void> PlannedPasses::plan(const Bucket& bucket, const KindTimes& times,
                                 std::uint32_t groups) {
  auto model = build_pass(options_, {bucket.first, 0, bucket.second});
  if (!model) return model.error();
  for (Op& op : model->graph.ops) {
    if (const auto known = times.find(kind_of(op)); known != times.end()) {
      op.duration_ns = known->second;
    }
  }
  guess_durations(*model);
  const auto schedule = make_plan(model->graph, hardware_, copies_);
  if (!schedule) return schedule.error();
  for (std::uint32_t g = 0; g < groups; ++g) {
    const Pass pass{bucket.first, g, bucket.second};
    plans_.erase(pass);
    plans_.emplace(pass, load(runtime_, plan_for(*schedule, g)));
  }
  models_.insert_or_assign(bucket, std::move(model).value());
  return {};
}

Result<void> PlannedPasses::run_timed(const Pass& pass, std::span<const std::int32_t> tokens,
                                      StepContext& context, OpTimes* times) {
  const SteadyClock clock;
  const Model& model = models_.at({pass.phase, pass.blocks});
  hyperoffload::Plan& plan = plans_.at(pass);
  plan.write(model.tokens.value(), tokens.data(), tokens.size_bytes());
  const TimePoint start = clock.now();
  plan.step_begin();
  swap_ns_ += static_cast<std::uint64_t>((clock.now() - start).count());
  if (auto ok = run_ops(plan, model, context, stopped_, times); !ok) return ok;
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
