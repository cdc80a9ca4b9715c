#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <type_traits>
#include <vector>

#include "common/text/json.hpp"
#include "tools/analyzer/analyzer.hpp"
#include "tools/hyperoffload/command.hpp"
#include "tools/hyperoffload/plan/compile/analyze_answer.hpp"

namespace ho::cli {

// What the commands that plan several ranks share.

/// --hardware, required: a machine with links.
inline void add_shared_hardware(CLI::App& command, std::string& into) {
  command
      .add_option("--hardware", into,
                  "one rank's machine, with links and paths: .json, .textproto or .pb")
      ->type_name("FILE")
      ->required();
}

/// A schedule of an earlier plan, for a rank that this plan lacks, would pass for one of its own.
/// It is not removed, since only its owner knows whether it is still needed.
/// @param kinds    what stands before "-RANK.hos" in names of schedules
/// @param outputs  the files of this plan
/// @return kAlreadyExists: there is one
inline Result<void> check_no_older_schedules(const std::string& folder,
                                             const std::vector<std::string>& kinds,
                                             const std::vector<std::string>& outputs) {
  std::error_code none;  // no folder: nothing is in it
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    const std::string name = entry.path().stem().string();
    const std::size_t dash = name.rfind('-');
    if (entry.path().extension() != ".hos" || dash == std::string::npos) continue;
    const bool numbered = dash + 1 < name.size() &&
                          name.find_first_not_of("0123456789", dash + 1) == std::string::npos;
    const auto is_in = [](const std::vector<std::string>& list, const std::string& text) {
      return std::find(list.begin(), list.end(), text) != list.end();
    };
    if (!numbered || !is_in(kinds, name.substr(0, dash))) continue;
    if (is_in(outputs, entry.path().string())) continue;
    return Error(Errc::kAlreadyExists, entry.path().string() +
                                           " is of an earlier plan: remove it, or give another "
                                           "folder");
  }
  return {};
}

/// Says that no plan fits, and for whom. @param who  a rank's number, or a program's name
/// @return the exit code
template <typename Who>
int answer_infeasible(Console& console, const char* field, const Who& who,
                      const analyzer::Infeasible& why) {
  if (console.json()) {
    JsonWriter json;
    json.begin_object().key("infeasible").begin_object().field(field, who);
    write_no_room(json, why);
    json.end().end();
    console.print(std::move(json).text());
  }
  std::string name = field + std::string(" ");
  if constexpr (std::is_integral_v<Who>) {
    name += std::to_string(who);
  } else {
    name += who;
  }
  return console.complain(no_room(why, "its step").at(name), kExitInfeasible);
}

}  // namespace ho::cli
