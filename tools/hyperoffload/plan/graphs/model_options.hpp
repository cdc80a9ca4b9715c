#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "common/cli/console.hpp"
#include "tools/models/llama_like.hpp"

namespace ho::cli {

/// The largest number of tokens or sequences that `parallel-sweep` reads.
inline constexpr std::uint64_t kModelNumberMax = 1'000'000'000;

/// A model, given on the command line.
struct ModelWords {
  models::LlamaLike model;
  std::string phase;
};

/// Adds layers, widths, experts, and the device's rates. @return the options.
std::vector<CLI::Option*> add_model_sizes(CLI::App& command, models::LlamaLike& model);

/// Adds --phase, the sizes except --context, and the device's rates. @return the options.
std::vector<CLI::Option*> add_model_options(CLI::App& command, ModelWords& words);

/// Says so to people where a step leaves experts out.
void warn_of_unused_experts(Console& console, const models::LlamaLike& model);

/// Makes the model in its phase. @param words  parsed.
[[nodiscard]] models::LlamaLike model_of(const ModelWords& words);

}  // namespace ho::cli
