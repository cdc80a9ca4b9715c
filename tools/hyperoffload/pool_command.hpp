#pragma once

#include <chrono>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/json.hpp"
#include "tools/hyperoffload/command.hpp"
#include "tools/hyperoffload/pool_view.hpp"
#include "tools/hyperoffload/words.hpp"

// What the commands that ask a running pool have in common.
namespace ho::cli {

inline constexpr auto kPoolDeadline = std::chrono::seconds(2);
inline constexpr int kExitNodeUnreachable = 1;
inline constexpr int kExitPoolUnreachable = 3;

struct PoolOptions {
  std::string pool;
  std::string output = "table";
};

using Rows = std::vector<std::vector<std::string>>;

/// A command is a question for each node and how its answers are shown.
template <typename Answer>
struct PoolCommand {
  const char* name;
  std::function<Result<Answer>(ControlClient&, TimePoint)> ask;
  std::vector<std::string> heading;
  /// Rows of one node that answered.
  std::function<void(const NodeInfo&, const Answer&, Rows&)> add_rows;
  /// Members of one node's JSON object.
  std::function<void(const Answer&, JsonWriter&)> add_json;
  bool one_row_per_node = false;  ///< then an unreachable node has one too
};

template <typename Answer>
void print_table(const PoolCommand<Answer>& command,
                 const std::vector<NodeAnswer<Answer>>& answers) {
  Rows rows{command.heading};
  for (const auto& one : answers) {
    if (one.answer) {
      command.add_rows(one.node, *one.answer, rows);
    } else if (command.one_row_per_node) {
      rows.push_back({std::to_string(one.node.node.value()), one.node.name, "unreachable"});
    }
  }
  std::cout << format_table(std::move(rows));
}

template <typename Answer>
void print_json(const PoolCommand<Answer>& command,
                const std::vector<NodeAnswer<Answer>>& answers) {
  JsonWriter json;
  json.begin_object().key("nodes").begin_array();
  for (const auto& one : answers) {
    json.begin_object();
    json.field("node_id", std::uint64_t{one.node.node.value()}).field("name", one.node.name);
    json.key("control_addresses").begin_array();
    for (const auto& address : one.node.control_addresses) json.value(address);
    json.end().field("reachable", one.answer.ok());
    if (one.answer) {
      command.add_json(*one.answer, json);
    } else {
      json.field("error", one.answer.error().message());
    }
    json.end();
  }
  json.end().end();
  std::cout << json.text() << '\n';
}

template <typename Answer>
int run_command(const PoolCommand<Answer>& command, const PoolOptions& options) {
  const TimePoint deadline = SteadyClock().now() + kPoolDeadline;
  auto pool = open_pool(options.pool, deadline);
  if (!pool) {
    complain(command.name, pool.error());
    return pool.error().code() == Errc::kInvalidArgument ? kExitBadInput : kExitPoolUnreachable;
  }
  const auto answers = ask_all<Answer>(*pool, deadline, command.ask);
  if (options.output == "json") {
    print_json(command, answers);
  } else {
    print_table(command, answers);
  }
  int exit_code = kExitDone;
  for (const auto& one : answers) {
    if (one.answer) continue;
    complain(command.name, one.answer.error().at("node " + std::to_string(one.node.node.value()) +
                                                 " (" + one.node.name + ")"));
    exit_code = kExitNodeUnreachable;
  }
  return exit_code;
}

/// Adds --pool and -o to a subcommand.
void add_pool_options(CLI::App& sub, PoolOptions& options);

template <typename Answer>
void add_command(CLI::App& app, const std::string& pool, int& exit_code, const char* about,
                 PoolCommand<Answer> command) {
  CLI::App* const sub = app.add_subcommand(command.name, about);
  auto options = std::make_shared<PoolOptions>();
  options->pool = pool;
  add_pool_options(*sub, *options);
  sub->footer(
      "All nodes are asked, for 2 s at most. Exit codes: 0 all answered; 1 some node did not; "
      "2 bad usage; 3 the pool cannot be reached.\n"
      "Example: hyperoffload " +
      std::string(command.name) + " --pool tcp:127.0.0.1:7700 -o json");
  sub->callback([options, command = std::move(command), &exit_code] {
    exit_code = run_command(command, *options);
  });
}

}  // namespace ho::cli
