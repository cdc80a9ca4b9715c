#include "common/cli/program.hpp"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <exception>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "common/base/check.hpp"
#include "common/cli/help.hpp"
#include "common/cli/nearest.hpp"

namespace ho::cli {
namespace {

extern "C" void end_on_interrupt(int) { ::_exit(kExitInterrupted); }

std::string full_name(const CLI::App& command) {
  const CLI::App* const above = command.get_parent();
  return above == nullptr ? command.get_name() : full_name(*above) + " " + command.get_name();
}

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

/// Describes a word that the parser could not place.
std::string describe_unknown(const CLI::App& command, const std::string& word) {
  std::vector<std::string> names;
  std::string what = "unexpected argument";
  std::string_view wanted = word;
  if (word.size() > 1 && word[0] == '-') {
    what = "unknown option";
    wanted = wanted.substr(0, wanted.find('='));
    wanted.remove_prefix(std::min(wanted.find_first_not_of('-'), wanted.size()));
    for (const CLI::Option* option : command.get_options()) {
      for (const std::string& name : option->get_lnames()) names.push_back(name);
    }
  } else if (!commands_of(command).empty()) {
    what = "unknown command";
    for (const CLI::App* one : commands_of(command)) names.push_back(one->get_name());
  }
  const char* const dashes = what == "unknown option" ? "--" : "";
  return what + " \"" + word + "\"" + did_you_mean(wanted, {names.begin(), names.end()}, dashes);
}

/// Describes a usage error for people.
std::string describe(const CLI::App& command, const CLI::ParseError& error) {
  for (const CLI::App* one = &command; one != nullptr; one = one->get_parent()) {
    if (!one->remaining().empty()) return describe_unknown(*one, one->remaining().front());
  }
  std::string text = error.what();
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    if (text.rfind("A subcommand", 0) != 0) {
      return text.substr(0, text.find(" is ")) + " is missing";
    }
    std::string names;
    for (const CLI::App* one : commands_of(command)) {
      names += (names.empty() ? "" : ", ") + one->get_name();
    }
    return "a command is missing: " + names;
  }
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr &&
      text.find(" missing") != std::string::npos) {
    return text.substr(0, text.find(':')) + " needs a value";
  }
  return text;
}

/// The first option that was given with nothing in it.
std::optional<std::string> empty_option(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    const auto& values = option->results();
    if (option->get_type_size() == 0 || values.empty()) continue;
    if (std::any_of(values.begin(), values.end(), [](const auto& one) { return one.empty(); })) {
      return option->get_name();
    }
  }
  return std::nullopt;
}

/// Ends the output. @return `code`, or another one where the result could not be written.
int finish(Console& console, int code) {
  const auto written = console.flush();
  if (written) return code;
  console.refuse(written.error());
  return code == kExitDone ? kExitBadInput : code;
}

}  // namespace

Program::Program(std::string name, std::string about) : app_(std::move(about)) {
  app_.name(name);
  app_.set_version_flag("--version", name + " " HO_VERSION, "print the version and exit");
  app_.set_help_flag("-h,--help", "print this help and exit");
  app_.formatter(std::make_shared<HelpFormatter>());
}

void Program::set_run(CLI::App& command, Run run) {
  command.add_option("-o,--output", format_, "how to show the result: table, wide or json")
      ->type_name("FORMAT")
      ->default_str("table")
      ->check([](const std::string& word) {
        const bool known = word == "table" || word == "wide" || word == "json";
        return known ? std::string() : "\"" + word + "\" is none of table, wide and json";
      });
  if (command.get_require_subcommand_min() > 0) command.require_subcommand(0, 1);
  runs_[&command] = std::move(run);
}

CLI::App& Program::add(CLI::App& above, const std::string& name, const std::string& about,
                       Run run) {
  CLI::App& command = *above.add_subcommand(name, about);
  above.require_subcommand(runs_.count(&above) == 0 ? 1 : 0, 1);
  set_run(command, std::move(run));
  return command;
}

CLI::App& Program::add_group(const std::string& name, const std::string& about) {
  return *app_.add_subcommand(name, about);
}

CLI::App& Program::parsed() {
  CLI::App* command = &app_;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  return *command;
}

int Program::run_parsed(std::vector<std::string> words) {
  const auto refuse = [this](const std::string& text) {
    const std::string name = full_name(parsed());
    Console console(name, Format::kTable);
    console.refuse(Error(Errc::kInvalidArgument, text));
    console.note("Try \"" + name + " --help\".");
    return kExitBadInput;
  };
  Console console(full_name(app_), Format::kTable);
  try {
    std::reverse(words.begin(), words.end());  // as CLI11 takes them
    app_.parse(std::move(words));
  } catch (const CLI::CallForHelp&) {
    console.print(app_.help());
    return finish(console, kExitDone);
  } catch (const CLI::CallForVersion& version) {
    console.print(version.what());
    return finish(console, kExitDone);
  } catch (const CLI::ParseError& error) {
    return refuse(describe(parsed(), error));
  }
  CLI::App& command = parsed();
  if (const auto option = empty_option(command)) return refuse(*option + " needs a value");
  const Format format = format_ == "json"   ? Format::kJson
                        : format_ == "wide" ? Format::kWide
                                            : Format::kTable;
  Console of_command(full_name(command), format);
  return finish(of_command, runs_.at(&command)(of_command));
}

int Program::run(int argc, char** argv) {
  struct sigaction before {};
  ::sigaction(SIGINT, nullptr, &before);
  if (before.sa_handler == SIG_DFL) std::signal(SIGINT, end_on_interrupt);
  std::vector<std::string> words(argv + 1, argv + argc);
  if (!default_command_.empty()) {
    const std::string first = words.empty() ? "" : words.front();
    const auto commands = commands_of(app_);
    const bool named = first == "--help" || first == "-h" || first == "--version" ||
                       std::any_of(commands.begin(), commands.end(),
                                   [&](const CLI::App* one) { return one->get_name() == first; });
    if (!named) words.insert(words.begin(), default_command_);
  }
  try {
    return run_parsed(std::move(words));
  } catch (const std::exception& error) {  // our own never get here; a library's may
    return Console(full_name(app_), Format::kTable)
        .complain(Error(Errc::kIo, error.what()), kExitNo);
  }
}

}  // namespace ho::cli
