#include "common/cli/completion.hpp"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

namespace ho::cli {
namespace {

std::vector<const CLI::App*> listed_commands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* one) { return !one->get_group().empty(); });
}

std::string option_names(const CLI::App& command) {
  std::string names;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_group().empty()) continue;
    for (const std::string& name : option->get_lnames()) names += "--" + name + " ";
    for (const std::string& name : option->get_snames()) names += "-" + name + " ";
  }
  return names;
}

/// The words that an option takes, each followed by a space, as its type says after a colon:
/// "TEXT:{get,put}". Empty: others, too.
std::string choices_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const std::size_t open = type.find(":{");
  const std::size_t close = type.find('}', open);
  if (open == std::string::npos || close == std::string::npos) return "";
  std::string words = type.substr(open + 2, close - open - 2) + " ";
  std::replace(words.begin(), words.end(), ',', ' ');
  return words;
}

/// `words` (each followed by a space) on lines that a quoted string of a shell joins again.
std::string folded(const std::string& words) {
  constexpr std::size_t kFull = 50;  // the last word and "\" ;;" end within 80 columns
  std::string out;
  std::size_t length = kFull;
  for (const char one : words) {
    if (length >= kFull && (out.empty() || out.back() == ' ')) {
      out += "\\\n";
      length = 0;
    }
    out += one;
    length += 1;
  }
  return out;
}

/// "  PATH) words ;;" for a command and those below it: `words_of` says which words.
template <typename Words>
void add_cases(std::string& out, const CLI::App& command, const std::string& path,
               const Words& words_of) {
  out += "    \"" + path + "\") echo \"" + folded(words_of(command)) + "\" ;;\n";
  for (const CLI::App* below : listed_commands(command)) {
    add_cases(out, *below, path + " " + below->get_name(), words_of);
  }
}

/// "  PATH OPTION) choices ;;" for each option that takes only these words.
void add_choice_cases(std::string& out, const CLI::App& command, const std::string& path) {
  for (const CLI::Option* option : command.get_options()) {
    const std::string choices = choices_of(*option);
    if (choices.empty() || option->get_group().empty()) continue;
    for (const std::string& name : option->get_lnames()) {
      out += "    \"" + path + " --" + name + "\") echo \"" + folded(choices) + "\" ;;\n";
    }
  }
  for (const CLI::App* below : listed_commands(command)) {
    add_choice_cases(out, *below, path + " " + below->get_name());
  }
}

/// A name that shells take for a function.
std::string function_name(const CLI::App& app) {
  std::string name = "_" + app.get_name();
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

/// Functions that both shells understand: the words below a command, given as its whole path, its
/// options, and the words that follow "PATH OPTION".
std::string shared_functions(const CLI::App& app) {
  const std::string name = function_name(app);
  std::string out = name + "_commands() {\n  case \"$1\" in\n";
  add_cases(out, app, app.get_name(), [](const CLI::App& command) {
    std::string names;
    for (const CLI::App* below : listed_commands(command)) names += below->get_name() + " ";
    return names;
  });
  out += "  esac\n}\n\n" + name + "_options() {\n  case \"$1\" in\n";
  add_cases(out, app, app.get_name(), option_names);
  out += "  esac\n}\n\n" + name + "_choices() {\n  case \"$1\" in\n";
  add_choice_cases(out, app, app.get_name());
  return out + "    *\" -o\" | *\" --output\") echo \"table wide json \" ;;\n  esac\n}\n\n";
}

std::string replaced(std::string text, std::string_view what, const std::string& by) {
  for (std::size_t at = text.find(what); at != std::string::npos;
       at = text.find(what, at + by.size())) {
    text.replace(at, what.size(), by);
  }
  return text;
}

/// `text` with each "FUNCTION" replaced by the functions' name, and "PROGRAM" by the program's.
std::string filled(std::string text, const CLI::App& app) {
  return replaced(replaced(std::move(text), "FUNCTION", function_name(app)), "PROGRAM",
                  app.get_name());
}

}  // namespace

std::string bash_completion(const CLI::App& app) {
  return filled("# Completion of PROGRAM for bash.\n\n", app) + shared_functions(app) +
         filled(R"sh(FUNCTION() {
  local path=PROGRAM each choices
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}
  COMPREPLY=()
  for each in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    [[ " $(FUNCTION_commands "$path") " != *" $each "* ]] || path+=" $each"
  done
  choices=$(FUNCTION_choices "$path $before")
  if [[ -n $choices ]]; then
    COMPREPLY=($(compgen -W "$choices" -- "$word"))
  elif [[ $word == -* ]]; then
    COMPREPLY=($(compgen -W "$(FUNCTION_options "$path")" -- "$word"))
  elif [[ $before != -* ]]; then
    COMPREPLY=($(compgen -W "$(FUNCTION_commands "$path")" -- "$word"))
  fi
}
complete -o bashdefault -o default -F FUNCTION PROGRAM
)sh",
                app);
}

std::string zsh_completion(const CLI::App& app) {
  return filled("#compdef PROGRAM\n# Completion of PROGRAM for zsh.\n\n", app) +
         shared_functions(app) +
         filled(R"sh(FUNCTION() {
  local path_=PROGRAM each
  local word=${words[CURRENT]} before=${words[CURRENT-1]}
  local -a below choices
  for each in ${words[2,CURRENT-1]}; do
    [[ " $(FUNCTION_commands "$path_") " != *" $each "* ]] || path_+=" $each"
  done
  below=(${=$(FUNCTION_commands "$path_")})
  choices=(${=$(FUNCTION_choices "$path_ $before")})
  if [[ ${#choices} -gt 0 ]]; then
    compadd -- $choices
  elif [[ $word == -* ]]; then
    compadd -- ${=$(FUNCTION_options "$path_")}
  elif [[ $before != -* && ${#below} -gt 0 ]]; then
    compadd -- $below
  else
    _files
  fi
}
# As a file of fpath it is the body of a function of that name, which is called to complete; else it is evaluated.
if [[ $funcstack[1] == FUNCTION ]]; then
  FUNCTION "$@"
else
  compdef FUNCTION PROGRAM
fi
)sh",
                app);
}

}  // namespace ho::cli
