#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace ho::cli {

/// A script that completes a program's commands, options and the words that an option takes, from
/// the same tree that parses them. Other words complete as file names. Hidden commands are left
/// out.
/// @param app  the program itself; its name is what the shell completes.
[[nodiscard]] std::string bash_completion(const CLI::App& app);
[[nodiscard]] std::string zsh_completion(const CLI::App& app);

}  // namespace ho::cli
