#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/cli/console.hpp"

namespace ho::cli {

/// Does a command's work and returns how it ended (Exit).
using Run = std::function<int(Console&)>;

/// One command-line program: its commands, their help, and the contract that they all keep. A
/// resource, made by main().
///
///   Program program("hyperoffload", "Plans what leaves device memory.");
///   CLI::App& verify = program.add(program.root(), "verify", "Prove a schedule legal", run);
///   verify.add_option(...);
///   return program.run(argc, argv);
class Program {
 public:
  Program(std::string name, std::string about);

  /// The program itself, above all its commands.
  [[nodiscard]] CLI::App& root() { return app_; }
  /// A command below `above`. It has -o for the format of its result.
  CLI::App& add(CLI::App& above, const std::string& name, const std::string& about, Run run);
  /// Commands of their own below a name, as "flash ls" and "flash free".
  CLI::App& add_group(const std::string& name, const std::string& about);
  /// Lets the program, or a group, run without a command.
  void set_run(CLI::App& command, Run run);
  /// The command to run when the first word does not name one: "hyperoffload-gpt --steps 3".
  void set_default_command(std::string name) { default_command_ = std::move(name); }

  /// Parses the words, runs the command and checks that its result was written. Ctrl-C ends the
  /// program with kExitInterrupted unless the command catches it. @return the program's exit code.
  [[nodiscard]] int run(int argc, char** argv);

 private:
  [[nodiscard]] CLI::App& parsed();
  [[nodiscard]] int run_parsed(std::vector<std::string> words);

  CLI::App app_;
  std::string default_command_;
  std::string format_ = "table";
  std::map<const CLI::App*, Run> runs_;
};

/// Adds a command whose options fill in arguments. @return it and its arguments, which live as long
/// as the program.
template <typename Arguments>
std::pair<CLI::App&, Arguments&> add_command(Program& program, CLI::App& above,
                                             const std::string& name, const std::string& about,
                                             std::function<int(Console&, Arguments&)> run) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App& command = program.add(
      above, name, about,
      [run = std::move(run), arguments](Console& console) { return run(console, *arguments); });
  return {command, *arguments};
}

}  // namespace ho::cli
