#include <algorithm>
#include <hyperoffload/hyperoffload.hpp>
#include <optional>

#include "common/base/clock.hpp"
#include "common/base/units.hpp"
#include "common/cli/help.hpp"
#include "common/cli/layout.hpp"
#include "common/cli/values.hpp"
#include "common/text/json.hpp"
#include "proto/files/convert.hpp"
#include "tools/analyzer/analyzer.hpp"
#include "tools/examples/gpt/arena.hpp"
#include "tools/examples/gpt/commands.hpp"
#include "tools/examples/gpt/kernels.hpp"
#include "tools/examples/gpt/plan.hpp"
#include "tools/examples/gpt/text.hpp"

namespace ho::gpt {
namespace {

struct TrainArguments {
  ModelOptions model;
  std::uint32_t steps = 10;
  PoolArguments pool;
  std::string text = "/usr/share/common-licenses/GPL-3";
  std::string emit_graph;
};

void add_options(CLI::App& app, TrainArguments& a) {
  add_model(app, a.model);
  cli::add_count(app, "--steps", a.steps, "Training steps", {1, 1000000});
  app.add_option("--text", a.text, "File whose bytes are learnt")->capture_default_str();
  add_pool(app, a.pool);
  app.add_option("--emit-graph", a.emit_graph, "Write the graph with measured durations here");
}

struct Steps {
  std::vector<double> ms;
  std::vector<double> losses;
};

/// A model whose tensors are on the device or in the pool, as a plan says.
class Training {
 public:
  Training(Model& model, const Text& text, hyperoffload::Runtime& runtime)
      : model_(model), text_(text), runtime_(runtime) {}

  /// Makes a plan for the model's durations, loads it, and starts from the initial values.
  Result<void> start(const Hardware& hardware, const analyzer::CopiesByKind& copies) {
    guess_durations(model_);
    const auto schedule = make_plan(model_.graph, hardware, copies);
    if (!schedule) return schedule.error();
    plan_.reset();
    plan_.emplace(load(runtime_, *schedule));
    write_initial_values(*plan_, model_);
    steps_ = {};
    return {};
  }

  Result<void> step(OpTimes* times = nullptr) {
    const TimePoint start = clock_.now();
    const std::uint64_t number = steps_.ms.size();
    std::vector<std::int32_t> tokens(std::size_t{model_.options.batch} * model_.options.seq);
    std::vector<std::int32_t> targets(tokens.size());
    text_.batch(model_.options, number, tokens, targets);
    plan_->write(model_.tokens.value(), tokens.data(), tokens.size() * sizeof(tokens[0]));
    plan_->write(model_.targets.value(), targets.data(), targets.size() * sizeof(targets[0]));
    StepContext context = step_context(model_, number);
    plan_->step_begin();
    if (auto ok = run_ops(*plan_, model_, context, stop_requested, times); !ok) return ok;
    plan_->step_end();
    steps_.ms.push_back(double((clock_.now() - start).count()) * 1e-6);
    steps_.losses.push_back(double{context.loss});
    return {};
  }

  [[nodiscard]] const Steps& steps() const { return steps_; }
  [[nodiscard]] ho_counters counters() const { return plan_->counters(); }

 private:
  const SteadyClock clock_;
  Model& model_;
  const Text& text_;
  hyperoffload::Runtime& runtime_;
  std::optional<hyperoffload::Plan> plan_;
  Steps steps_;
};

/// The result; bytes are means per step.
std::string to_text(cli::Format format, const std::string& transport, const ho_counters& counters,
                    const Steps& steps) {
  const std::size_t count = steps.ms.size();
  const double stall_ms = double(counters.stall_ns) * 1e-6 / double(count);
  if (format != cli::Format::kJson) {
    return cli::Facts("trained " + std::to_string(count) + " steps over " + transport)
        .add("last loss", std::to_string(steps.losses.back()))
        .add("stall", format_duration_ns(std::uint64_t(stall_ms * 1e6)) + " a step")
        .add("device memory", format_bytes(counters.peak_device_bytes))
        .text(format);
  }
  JsonWriter out;
  const auto list = [&out](const char* name, const std::vector<double>& values) {
    out.key(name).begin_array();
    for (const double value : values) out.value(value);
    out.end();
  };
  out.begin_object().field("transport", transport);
  list("losses", steps.losses);
  list("step_ms", steps.ms);
  out.field("stall_ms_mean", stall_ms);
  out.field("peak_device_bytes", counters.peak_device_bytes);
  out.field("prefetch_bytes", counters.prefetch_bytes / count);
  return std::move(out.field("store_bytes", counters.store_bytes / count).end()).text();
}

Result<void> train(cli::Console& console, const TrainArguments& arguments) {
  if (!arguments.emit_graph.empty()) {
    if (auto known = check_graph_path(arguments.emit_graph); !known) return known;
  }
  auto model = build_model(arguments.model);
  if (!model) return model.error();
  const auto text = Text::read(arguments.text, arguments.model.seq);
  if (!text) return text.error();
  const auto copies = analyzer::parse_copies(arguments.pool.copies);
  if (!copies) return copies.error();
  use_one_blas_thread();
  hyperoffload::Pool pool = connect(arguments.pool);
  const std::uint64_t homes = arguments.pool.copies.empty() ? 1 : kCopiesMax;
  std::uint64_t all_bytes = 0;
  for (const Storage& storage : model->graph.storages) {
    all_bytes += homes * align_up(storage.bytes, 64);
  }
  const auto hardware = measure_links(pool, arguments.pool,
                                      {analyzer::peak_unmanaged_bytes(model->graph), all_bytes});
  if (!hardware) return hardware.error().at("measure pool");
  const auto arena = Arena::create(hardware->device_bytes);
  if (!arena) return arena.error();
  hyperoffload::Runtime runtime(pool, (*arena)->data(), (*arena)->bytes());
  Training training(*model, *text, runtime);
  // Two steps under a plan with guessed durations measure those for the second plan.
  if (auto ok = training.start(*hardware, *copies); !ok) return ok;
  OpTimes times;
  for (int i = 0; i < 2; ++i) {  // the first step meets cold caches
    if (auto ok = training.step(&times); !ok) return ok;
  }
  for (Op& op : model->graph.ops) op.duration_ns = times[op.id];
  if (auto ok = training.start(*hardware, *copies); !ok) return ok;
  const Steps& steps = training.steps();
  while (steps.ms.size() < arguments.steps) {
    if (auto ok = training.step(); !ok) return ok;
    console.note("step " + std::to_string(steps.ms.size() - 1) + ": loss " +
                 std::to_string(steps.losses.back()) + ", " +
                 format_duration_ns(std::uint64_t(steps.ms.back() * 1e6)));
  }
  console.print(to_text(console.format(), pool.transport(), training.counters(), steps));
  if (arguments.emit_graph.empty()) return {};
  auto written = write_graph_file(model->graph, arguments.emit_graph);
  return written ? written : Error(Errc::kInvalidArgument, written.error().context());
}

}  // namespace

void add_train(cli::Program& program) {
  const auto run = [](cli::Console& console, const TrainArguments& arguments) {
    return ended(console, arguments.pool, [&] { return train(console, arguments); });
  };
  auto [command, arguments] = cli::add_command<TrainArguments>(
      program, program.root(), "train", "Train it; meant where no command is named", run);
  add_options(command, arguments);
  cli::set_manual(command, {"",
                            {"hyperoffload-gpt --device-memory 60% --steps 20 -o json"},
                            {{cli::kExitDone, "trained"},
                             {cli::kExitInfeasible, "the budget cannot be met"},
                             {cli::kExitPoolFailed, "the pool failed or cannot be reached"}}});
}

}  // namespace ho::gpt
