#include <utility>

#include "common/base/units.hpp"
#include "common/cli/help.hpp"
#include "common/cli/layout.hpp"
#include "common/text/json.hpp"
#include "tools/examples/gpt/commands.hpp"
#include "tools/examples/gpt/generation_arguments.hpp"
#include "tools/examples/gpt/kernels.hpp"
#include "tools/examples/gpt/planned_passes.hpp"

namespace ho::gpt {
namespace {

struct GenerateArguments {
  GenerationArguments job;
  PoolArguments pool;
};

/// The result of a run, and the memory that it used.
struct Outcome {
  Generation generation;
  std::string transport;
  std::uint64_t resident_bytes = 0;
  PassUsage usage;
  std::size_t plans = 0;
};

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

std::string to_text(cli::Format format, const Outcome& outcome) {
  const Generation& made = outcome.generation;
  const PassUsage& usage = outcome.usage;
  if (format != cli::Format::kJson) {
    cli::Facts facts("generated over " + outcome.transport);
    for (std::size_t i = 0; i < made.tokens.size(); ++i) {
      facts.add("sequence " + std::to_string(i),
                cli::printable(std::string(made.tokens[i].begin(), made.tokens[i].end())));
    }
    return facts
        .add("decode", format_duration_ns(std::uint64_t(mean(made.decode_ms) * 1e6)) +
                           " a token of each sequence of a group")
        .add("device memory",
             format_bytes(usage.peak_device_bytes) + " of " + format_bytes(outcome.resident_bytes))
        .text(format);
  }
  JsonWriter out;
  out.begin_object().field("transport", outcome.transport).key("tokens").begin_array();
  for (const std::vector<std::int32_t>& sequence : made.tokens) {
    out.begin_array();
    for (const std::int32_t token : sequence) out.value(token);
    out.end();
  }
  out.end().field("prefill_ms_mean", mean(made.prefill_ms));
  out.field("decode_ms_mean", mean(made.decode_ms));
  out.field("plans", outcome.plans).field("resident_bytes", outcome.resident_bytes);
  out.field("peak_device_bytes", usage.peak_device_bytes);
  out.field("stall_ms", double(usage.stall_ns) * 1e-6);
  out.field("prefetch_bytes", usage.prefetch_bytes).field("store_bytes", usage.store_bytes);
  return std::move(out.end()).text();
}

Result<void> run(cli::Console& console, const GenerateArguments& arguments) {
  const auto job = generation_job(arguments.job);
  if (!job) return job.error();
  const auto layout = resident_layout(job->options.decoder);
  if (!layout) return layout.error();
  const auto copies = analyzer::parse_copies(arguments.pool.copies);
  if (!copies) return copies.error();
  use_one_blas_thread();
  hyperoffload::Pool pool = connect(arguments.pool);
  const std::uint64_t homes = arguments.pool.copies.empty() ? 1 : kCopiesMax;
  const auto hardware = measure_links(pool, arguments.pool, {layout->bytes, homes * layout->bytes});
  if (!hardware) return hardware.error().at("measure pool");
  auto passes = PlannedPasses::create(job->options.decoder, pool, *hardware,
                                      longest_prompt(job->prompts), stop_requested, *copies);
  if (!passes) return passes.error();
  auto made = generate(job->options, job->prompts, **passes, stop_requested);
  if (!made) return made.error();
  console.print(to_text(console.format(), {std::move(made).value(), pool.transport(), layout->bytes,
                                           (*passes)->usage(), (*passes)->plans()}));
  return {};
}

}  // namespace

void add_generate(cli::Program& program) {
  const auto run_again = [](cli::Console& console, const GenerateArguments& arguments) {
    return ended(console, arguments.pool, [&] { return run(console, arguments); });
  };
  auto [command, arguments] = cli::add_command<GenerateArguments>(
      program, program.root(), "generate", "Continue texts", run_again);
  add_generation(command, arguments.job);
  add_pool(command, arguments.pool);
  cli::set_manual(command,
                  {"Tokens are bytes. The weights are those that training begins with.",
                   {"hyperoffload-gpt generate --prompt 'Once upon a time' --device-memory 25%"},
                   {{cli::kExitDone, "generated"},
                    {cli::kExitInfeasible, "the budget cannot be met"},
                    {cli::kExitPoolFailed, "the pool failed or cannot be reached"}}});
}

}  // namespace ho::gpt
