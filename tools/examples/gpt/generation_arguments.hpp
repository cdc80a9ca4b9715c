#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "common/base/result.hpp"
#include "tools/examples/gpt/generation.hpp"
#include "tools/examples/gpt/model.hpp"

namespace ho::gpt {

/// The shape of a training step. `into` outlives the parser, as below.
void add_model(CLI::App& app, ModelOptions& into);

/// How a job reaches its pool.
struct PoolAddress {
  std::string transport = "auto";
  std::string pool = "unix:/run/hyperoffload/control.sock";
};
void add_pool_address(CLI::App& app, PoolAddress& into);

/// The options of a job that generates text.
struct GenerationArguments {
  GenerationOptions options;
  std::vector<std::string> prompts;
  std::string prompts_file;
};
void add_generation(CLI::App& app, GenerationArguments& into);

struct GenerationJob {
  GenerationOptions options;  ///< with rows for the longest prompt, and no more places than prompts
  std::vector<Prompt> prompts;
};
/// @return kInvalidArgument if there is no prompt, one is empty, a file cannot be read, or the KV
/// cache would be absurdly large. build_pass() checks the model's shape.
[[nodiscard]] Result<GenerationJob> generation_job(const GenerationArguments& arguments);

}  // namespace ho::gpt
