#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <utility>
#include <vector>

#include "common/cli/exit.hpp"

namespace ho::cli {

/// The part of a command's help that follows its options.
struct Manual {
  std::string notes;                  ///< a paragraph; may be empty
  std::vector<std::string> examples;  ///< command lines
  /// Exit codes and their meaning; kExitBadInput and kExitInterrupted are added to every command.
  std::vector<std::pair<Exit, std::string>> exits;
};

void set_manual(CLI::App& command, const Manual& manual);
/// Keeps the options that the command has so far out of its help page.
void hide_options(CLI::App& command);

/// Help pages of 80 columns. Shared by a program's commands.
class HelpFormatter final : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override;
  std::string make_usage(const CLI::App* app, std::string name) const override;
  std::string make_group(std::string group, bool is_positional,
                         std::vector<const CLI::Option*> options) const override;
  std::string make_option(const CLI::Option* option, bool is_positional) const override;
  std::string make_subcommand(const CLI::App* command) const override;
};

}  // namespace ho::cli
