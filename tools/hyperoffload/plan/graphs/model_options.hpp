#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "tools/models/llama_like.hpp"

namespace ho::cli {

/// The largest size of a model that is read.
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

/// Makes the model in its phase. @param words  parsed.
[[nodiscard]] models::LlamaLike model_of(const ModelWords& words);

}  // namespace ho::cli
