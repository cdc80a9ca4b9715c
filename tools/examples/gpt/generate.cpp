#include <algorithm>
#include <fstream>
#include <memory>
#include <utility>

#include "common/base/json.hpp"
#include "common/base/units.hpp"
#include "common/cli/help.hpp"
#include "common/cli/layout.hpp"
#include "tools/examples/gpt/commands.hpp"
#include "tools/examples/gpt/kernels.hpp"
#include "tools/examples/gpt/planned_passes.hpp"
#include "tools/examples/gpt/resident_passes.hpp"

namespace ho::gpt {
namespace {

struct Arguments {
  GenerationOptions generation;
  std::vector<std::string> prompts;
  std::string prompts_file;
  bool resident = false;
  PoolArguments pool;
};

void add_options(CLI::App& app, Arguments& a) {
  const auto add = [&app](const char* name, auto& into, const char* help) {
    return app.add_option(name, into, help)->capture_default_str();
  };
  a.generation.decoder.model.batch = 4;
  app.add_option("--prompt", a.prompts, "Text to continue; may be given several times")
      ->allow_extra_args(false);
  app.add_option("--prompts", a.prompts_file, "File with a prompt a line")
      ->check(CLI::ExistingFile);
  add("--tokens", a.generation.new_tokens, "New tokens of each sequence, at most")
      ->check(CLI::Range(1U, 65536U));
  app.add_option("--stop", a.generation.stop, "Token that ends its sequence")
      ->check(CLI::Range(0, static_cast<int>(kVocabulary) - 1));
  add("--temperature", a.generation.temperature, "Of sampling; 0: the likeliest token")
      ->check(CLI::Range(0.0, 100.0));
  add_model(app, a.generation.decoder.model);
  add("--batch", a.generation.decoder.model.batch, "Sequences of a group");
  add("--groups", a.generation.decoder.groups, "Groups, which take turns")
      ->check(CLI::Range(1U, 256U));
  add("--slice", a.generation.slice_tokens, "Tokens of a turn")->check(CLI::Range(1U, 65536U));
  add("--block", a.generation.decoder.block_rows, "Tokens of a block of the KV cache")
      ->check(CLI::Range(1U, 65536U));
  add("--seed", a.generation.decoder.model.seed, "Seed of weights and sampling");
  app.add_flag("--resident", a.resident, "Keep everything on the device, without a pool");
  add_pool(app, a.pool);
}

Result<std::vector<Prompt>> read_prompts(const Arguments& arguments) {
  std::vector<std::string> texts = arguments.prompts;
  if (!arguments.prompts_file.empty()) {
    std::ifstream file(arguments.prompts_file);
    for (std::string line; std::getline(file, line);) texts.push_back(line);
    if (!file.eof()) {
      return Error(Errc::kInvalidArgument, arguments.prompts_file + " cannot be read");
    }
  }
  if (texts.empty()) return Error(Errc::kInvalidArgument, "missing: --prompt or --prompts");
  std::vector<Prompt> prompts;
  for (const std::string& text : texts) {
    if (text.empty()) return Error(Errc::kInvalidArgument, "a prompt is empty");
    Prompt& prompt = prompts.emplace_back();
    for (const char letter : text) prompt.push_back(static_cast<unsigned char>(letter));
  }
  return prompts;
}

/// What ran, and what of it was on the device.
struct Outcome {
  Generation generation;
  std::string transport = "none";
  std::uint64_t resident_bytes = 0;
  PlannedUsage usage;
  std::size_t plans = 0;
};

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

std::string to_text(cli::Format format, const Outcome& outcome) {
  const Generation& made = outcome.generation;
  const PlannedUsage& usage = outcome.usage;
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
  out.end().field("prefill_passes", made.prefill_ms.size());
  out.field("prefill_ms_mean", mean(made.prefill_ms));
  out.field("decode_passes", made.decode_ms.size());
  out.field("decode_ms_mean", mean(made.decode_ms));
  out.field("decode_ms_median", median(made.decode_ms));
  out.field("plans", outcome.plans).field("resident_bytes", outcome.resident_bytes);
  out.field("peak_device_bytes", usage.peak_device_bytes);
  out.field("stall_ms", double(usage.stall_ns) * 1e-6);
  out.field("swap_ms", double(usage.swap_ns) * 1e-6);
  out.field("prefetch_bytes", usage.prefetch_bytes).field("store_bytes", usage.store_bytes);
  return std::move(out.end()).text();
}

Result<Outcome> generate_resident(const GenerationOptions& options,
                                  const std::vector<Prompt>& prompts) {
  auto passes = ResidentPasses::create(options.decoder);
  if (!passes) return passes.error();
  auto made = generate(options, prompts, **passes, stop_requested);
  if (!made) return made.error();
  Outcome outcome;
  outcome.generation = std::move(made).value();
  outcome.resident_bytes = outcome.usage.peak_device_bytes = (*passes)->bytes();
  return outcome;
}

Result<Outcome> generate_planned(const GenerationOptions& options,
                                 const std::vector<Prompt>& prompts,
                                 const PoolArguments& arguments) {
  const auto layout = resident_layout(options.decoder);
  if (!layout) return layout.error();
  hyperoffload::Pool pool = connect(arguments);
  const auto hardware = measure_links(pool, arguments, {layout->bytes, layout->bytes});
  if (!hardware) return hardware.error().at("measure pool");
  std::size_t longest = 0;
  for (const Prompt& prompt : prompts) longest = std::max(longest, prompt.size());
  auto passes = PlannedPasses::create(options.decoder, pool, *hardware,
                                      static_cast<std::uint32_t>(longest), stop_requested);
  if (!passes) return passes.error();
  auto made = generate(options, prompts, **passes, stop_requested);
  if (!made) return made.error();
  Outcome outcome;
  outcome.generation = std::move(made).value();
  outcome.transport = pool.transport();
  outcome.resident_bytes = layout->bytes;
  outcome.usage = (*passes)->usage();
  outcome.plans = (*passes)->plans();
  return outcome;
}

Result<void> run(cli::Console& console, const Arguments& arguments) {
  GenerationOptions options = arguments.generation;
  const auto prompts = read_prompts(arguments);
  if (!prompts) return prompts.error();
  DecoderOptions& decoder = options.decoder;
  if (decoder.model.batch < 1) return Error(Errc::kInvalidArgument, "--batch must be 1 .. 65536");
  const auto count = static_cast<std::uint32_t>(prompts->size());
  decoder.model.batch = std::min(decoder.model.batch, count);
  decoder.groups = std::min(decoder.groups, (count - 1) / decoder.model.batch + 1);
  decoder.model.seq = cache_rows(*prompts, options.new_tokens, decoder.block_rows);
  if (decoder.model.seq > 65536 ||
      std::uint64_t{decoder.model.batch} * decoder.model.seq > 1U << 24U) {
    return Error(Errc::kInvalidArgument,
                 "the longest prompt with its new tokens takes " +
                     std::to_string(decoder.model.seq) + " rows of " +
                     std::to_string(decoder.model.batch) +
                     " sequences; at most 65536 rows and 16777216 tokens of a group");
  }
  use_one_blas_thread();
  const auto outcome = arguments.resident ? generate_resident(options, *prompts)
                                          : generate_planned(options, *prompts, arguments.pool);
  if (!outcome) return outcome.error();
  console.print(to_text(console.format(), *outcome));
  return {};
}

}  // namespace

void add_generate(cli::Program& program) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App& command =
      program.add(program.root(), "generate", "Continue texts", [arguments](cli::Console& console) {
        return ended(console, [&] { return run(console, *arguments); });
      });
  add_options(command, *arguments);
  cli::set_manual(
      command,
      {"Tokens are bytes. The weights are those that training begins with.",
       {"hyperoffload-gpt generate --prompt 'Once upon a time' --device-memory 25%"},
       {{cli::kExitDone, "generated"},
        {cli::kExitInfeasible, "the budget cannot be met"},
        {cli::kExitPoolFailed, "the pool failed or cannot be reached"}}});
}

}  // namespace ho::gpt
