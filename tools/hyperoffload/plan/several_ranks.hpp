#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <type_traits>

#include "common/base/json.hpp"
#include "common/base/units.hpp"
#include "tools/analyzer/analyzer.hpp"
#include "tools/hyperoffload/command.hpp"

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

/// Says that no plan fits, and for whom. @param who  a rank's number, or a program's name
/// @return the exit code
template <typename Who>
int answer_infeasible(Console& console, const char* field, const Who& who,
                      const analyzer::Infeasible& why) {
  if (console.json()) {
    JsonWriter json;
    json.begin_object()
        .key("infeasible")
        .begin_object()
        .field(field, who)
        .field("op", why.op_id)
        .field("op_name", why.op_name)
        .field("tier", why.tier)
        .field("needs_bytes", why.needs_bytes)
        .end()
        .end();
    console.print(std::move(json).text());
  }
  std::string name;
  if constexpr (std::is_integral_v<Who>) {
    name = std::to_string(who);
  } else {
    name = who;
  }
  const std::string what = why.op_name.empty() ? "its step" : "op " + why.op_name;
  console.complain(Error(Errc::kExhausted, std::string(field) + " " + name + ": the " + why.tier +
                                               " cannot hold it: " + what + " needs " +
                                               format_bytes(why.needs_bytes) + " (" +
                                               std::to_string(why.needs_bytes) + " bytes)"),
                   kExitInfeasible);
  return kExitInfeasible;
}

}  // namespace ho::cli
