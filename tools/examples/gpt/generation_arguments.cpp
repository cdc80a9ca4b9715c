#include "tools/examples/gpt/generation_arguments.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <utility>

#include "common/cli/values.hpp"

namespace ho::gpt {
namespace {

Error bad(const std::string& what) { return {Errc::kInvalidArgument, what}; }

/// The lines of a file, without empty ones at its end.
Result<std::vector<std::string>> lines_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  if (!file.eof()) return bad(path + " cannot be read");
  while (!lines.empty() && lines.back().empty()) lines.pop_back();
  return lines;
}

Result<std::vector<Prompt>> read_prompts(const GenerationArguments& arguments) {
  std::vector<std::string> texts = arguments.prompts;  // the parser refuses empty ones
  if (!arguments.prompts_file.empty()) {
    const std::string& path = arguments.prompts_file;
    const auto lines = lines_of(path);
    if (!lines) return lines.error();
    if (lines->empty()) return bad("--prompts " + path + ": the file has no prompt");
    const auto empty = std::find(lines->begin(), lines->end(), "");
    if (empty != lines->end()) {
      return bad("--prompts " + path + ", line " + std::to_string(empty - lines->begin() + 1) +
                 ": a prompt is empty");
    }
    texts.insert(texts.end(), lines->begin(), lines->end());
  }
  if (texts.empty()) return bad("missing: --prompt or --prompts");
  std::vector<Prompt> prompts;
  for (const std::string& text : texts) {
    Prompt& prompt = prompts.emplace_back();
    for (const char letter : text) prompt.push_back(static_cast<unsigned char>(letter));
  }
  return prompts;
}

}  // namespace

void add_model(CLI::App& app, ModelOptions& into) {
  const auto add = [&app](const char* name, auto& value, const char* help) {
    app.add_option(name, value, help)->capture_default_str();
  };
  add("--layers", into.layers, "Transformer layers");
  add("--dim", into.dim, "Width of the residual stream");
  add("--heads", into.heads, "Attention heads");
  add("--seq", into.seq, "Tokens per sequence");
  add("--batch", into.batch, "Sequences per step");
  cli::add_count(app, "--seed", into.seed, "Seed of weights and batches", {0, UINT64_MAX});
}

void add_pool_address(CLI::App& app, PoolAddress& into) {
  cli::add_choice(app, "--transport", into.transport, "Driver to the pool",
                  {"auto", "local", "ucx", "ofi", "tcp"});
  app.add_option("--pool", into.pool, "Control address of a daemon")
      ->envname("HYPEROFFLOAD_POOL")
      ->capture_default_str();
}

void add_generation(CLI::App& app, GenerationArguments& a) {
  const auto add = [&app](const char* name, auto& into, const char* help) {
    return app.add_option(name, into, help)->capture_default_str();
  };
  a.options.decoder.model.batch = 4;
  app.add_option("--prompt", a.prompts, "Text to continue; may be given several times")
      ->allow_extra_args(false);
  app.add_option("--prompts", a.prompts_file,
                 "File with a prompt a line; empty lines at its end do not count")
      ->check(CLI::ExistingFile);
  add("--tokens", a.options.new_tokens, "New tokens of each sequence, at most")
      ->check(CLI::Range(1U, 65536U));
  app.add_option("--stop", a.options.stop, "Token that ends its sequence")
      ->check(CLI::Range(0, static_cast<int>(kVocabulary) - 1));
  add("--temperature", a.options.temperature, "For sampling; 0: the likeliest token")
      ->check(CLI::Range(0.0, 100.0));
  add("--layers", a.options.decoder.model.layers, "Transformer layers");
  add("--dim", a.options.decoder.model.dim, "Width of the residual stream");
  add("--heads", a.options.decoder.model.heads, "Attention heads");
  add("--batch", a.options.decoder.model.batch, "Sequences of a group")
      ->check(CLI::Range(1U, 65536U));
  add("--groups", a.options.decoder.groups, "Groups, which take turns")
      ->check(CLI::Range(1U, 256U));
  add("--slice", a.options.slice_tokens, "Tokens of a turn")->check(CLI::Range(1U, 65536U));
  add("--block", a.options.decoder.block_rows, "Tokens of a block of the KV cache")
      ->check(CLI::Range(1U, 65536U));
  cli::add_count(app, "--seed", a.options.decoder.model.seed, "Seed of weights and sampling",
                 {0, UINT64_MAX});
}

Result<GenerationJob> generation_job(const GenerationArguments& arguments) {
  auto prompts = read_prompts(arguments);
  if (!prompts) return prompts.error();
  GenerationJob job{arguments.options, std::move(prompts).value()};
  DecoderOptions& decoder = job.options.decoder;
  if (std::isnan(job.options.temperature)) {  // which no bound of a range excludes
    return Error(Errc::kInvalidArgument, "--temperature must be 0 .. 100");
  }
  const auto count = static_cast<std::uint32_t>(job.prompts.size());
  decoder.model.batch = std::min(decoder.model.batch, count);
  decoder.groups = std::min(decoder.groups, (count - 1) / decoder.model.batch + 1);
  decoder.model.seq = cache_rows(job.prompts, job.options.new_tokens, decoder.block_rows);
  const std::uint64_t tokens = std::uint64_t{decoder.model.batch} * decoder.model.seq;
  if (decoder.model.seq <= 65536 && tokens <= 1U << 24U) return job;
  return Error(Errc::kInvalidArgument,
               "the longest prompt with its new tokens takes " + std::to_string(decoder.model.seq) +
                   " rows of " + std::to_string(decoder.model.batch) +
                   " sequences; at most 65536 rows and 16777216 tokens of a group");
}

}  // namespace ho::gpt
