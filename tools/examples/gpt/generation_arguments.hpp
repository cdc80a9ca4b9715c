#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "common/base/result.hpp"
#include "tools/examples/gpt/generation.hpp"

namespace ho::gpt {

/// The options of a job that generates text.
struct GenerationArguments {
  GenerationOptions options;
  std::vector<std::string> prompts;
  std::string prompts_file;
};
/// `into` outlives the parser.
void add_generation(CLI::App& app, GenerationArguments& into);

struct GenerationJob {
  GenerationOptions options;  ///< with rows for the longest prompt, and no more places than prompts
  std::vector<Prompt> prompts;
};
/// @return kInvalidArgument if there is no prompt, one is empty, a file cannot be read, or the KV
/// cache would be absurdly large. build_pass() checks the model's shape.
[[nodiscard]] Result<GenerationJob> generation_job(const GenerationArguments& arguments);

}  // namespace ho::gpt
