#include "common/cli/help.hpp"

#include <algorithm>

#include "common/cli/layout.hpp"

namespace ho::cli {
namespace {

constexpr std::size_t kNameColumns = 28;  ///< width of the left column

/// `name` and its description beside it, or below where the name is long.
std::string described(const std::string& name, const std::string& text) {
  if (columns_of(name) + 2 <= kNameColumns) {
    return wrapped(name + std::string(kNameColumns - columns_of(name), ' '), text);
  }
  return name + "\n" + wrapped(std::string(kNameColumns, ' '), text);
}

/// "N" of "N:INT in [1 - 16]": what the check says comes when it fails.
std::string type_of(const CLI::Option& option) {
  const std::string name = option.get_type_name();
  return name.substr(0, name.find(':'));
}

/// Those that are in no group are hidden.
std::vector<const CLI::Option*> shown_options(const CLI::App& app) {
  return app.get_options(
      [](const CLI::Option* one) { return !one->get_positional() && !one->get_group().empty(); });
}

}  // namespace

void hide_options(CLI::App& command) {
  const auto has_page = [](const CLI::Option* option) { return option->get_name() != "--help"; };
  for (CLI::Option* const option : command.get_options(has_page)) option->group("");
}

void set_manual(CLI::App& command, const Manual& manual) {
  std::string text;
  if (!manual.notes.empty()) text += wrapped("", manual.notes) + "\n";
  text += manual.examples.size() > 1 ? "Examples:\n" : "Example:\n";
  for (const std::string& example : manual.examples) text += "  " + example + "\n";
  auto exits = manual.exits;
  exits.emplace_back(kExitBadInput,
                     "wrong usage, input that cannot be read or output that cannot be written");
  exits.emplace_back(kExitInterrupted, "interrupted by Ctrl-C");
  std::sort(exits.begin(), exits.end());
  text += "\nExit codes:\n";
  for (const auto& [code, meaning] : exits) {
    const std::string number = std::to_string(code);
    text += wrapped("  " + number + std::string(5 - number.size(), ' '), meaning);
  }
  text.pop_back();
  command.footer(text);
}

std::string HelpFormatter::make_help(const CLI::App* app, std::string name,
                                     CLI::AppFormatMode) const {
  std::string text = make_usage(app, std::move(name)) + "\n" + wrapped("", app->get_description()) +
                     make_positionals(app) + make_group("Options", false, shown_options(*app));
  const auto commands = app->get_subcommands([](const CLI::App*) { return true; });
  if (!commands.empty()) text += "\nCommands:\n";
  for (const CLI::App* command : commands) text += make_subcommand(command);
  if (!app->get_footer().empty()) text += "\n" + app->get_footer() + "\n";
  return text;
}

std::string HelpFormatter::make_usage(const CLI::App* app, std::string name) const {
  std::string words;
  for (const CLI::Option* option :
       app->get_options([](const CLI::Option* one) { return one->get_positional(); })) {
    words += " " + make_option_usage(option);
  }
  if (!app->get_subcommands([](const CLI::App*) { return true; }).empty()) words += " COMMAND";
  for (const CLI::Option* option : app->get_options(
           [](const CLI::Option* one) { return one->get_required() && !one->get_positional(); })) {
    words += " " + option->get_name() + " " + type_of(*option);
  }
  return wrapped("Usage: " + name + " ",
                 words.empty() ? "[OPTIONS]" : words.substr(1) + " [OPTIONS]");
}

std::string HelpFormatter::make_group(std::string group, bool is_positional,
                                      std::vector<const CLI::Option*> options) const {
  std::string text = "\n" + (is_positional ? "Arguments" : group) + ":\n";
  for (const CLI::Option* option : options) text += make_option(option, is_positional);
  return text;
}

std::string HelpFormatter::make_option(const CLI::Option* option, bool is_positional) const {
  std::string name =
      is_positional ? "  " + option->get_name(true) : "  " + option->get_name(false, true);
  if (!is_positional && option->get_type_size() != 0) name += " " + type_of(*option);
  std::string text = option->get_description();
  if (option->get_expected_max() == CLI::detail::expected_max_vector_size) text += " (one or more)";
  if (!option->get_default_str().empty()) text += " (default: " + option->get_default_str() + ")";
  return described(name, text);
}

std::string HelpFormatter::make_subcommand(const CLI::App* command) const {
  return described("  " + command->get_name(), command->get_description());
}

}  // namespace ho::cli
