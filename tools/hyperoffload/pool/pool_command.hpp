#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/cli/layout.hpp"
#include "common/text/json.hpp"
#include "tools/hyperoffload/command.hpp"
#include "tools/hyperoffload/pool/pool_view.hpp"
#include "tools/hyperoffload/pool/screen.hpp"

// Common parts of the commands that ask a running pool.
namespace ho::cli {

/// A command: a question to each node and how to show its answers.
template <typename Answer>
struct PoolCommand {
  const char* name;   ///< "status"
  const char* about;  ///< for the help
  std::function<Result<Answer>(ControlClient&, TimePoint)> ask;
  std::vector<Table::Column> columns;
  /// Rows of one node that answered.
  std::function<void(const NodeInfo&, const Answer&, Table&)> add_rows;
  /// Members of one node's JSON object.
  std::function<void(const Answer&, JsonWriter&)> add_json;
  /// The row of a node that did not answer; empty: no row.
  std::function<std::vector<std::string>(const NodeInfo&)> unreachable_row = {};
};

template <typename Answer>
std::string to_table(const PoolCommand<Answer>& command,
                     const std::vector<NodeAnswer<Answer>>& answers, Format format) {
  Table table(command.columns);
  for (const auto& one : answers) {
    if (one.answer) {
      command.add_rows(one.node, *one.answer, table);
    } else if (command.unreachable_row) {
      table.add(command.unreachable_row(one.node));
    }
  }
  return table.text(format);
}

template <typename Answer>
std::string to_json(const PoolCommand<Answer>& command,
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
  return std::move(json.end().end()).text();
}

/// Lines on nodes that call themselves otherwise than the pool's first does: those who look for one
/// by its name in a log or on a dashboard find the other.
template <typename Answer>
std::vector<std::string> notes_on_names(const std::vector<NodeAnswer<Answer>>& answers) {
  std::vector<std::string> notes;
  for (const auto& one : answers) {
    if (one.own_name.empty() || one.own_name == one.node.name) continue;
    const std::string number = std::to_string(one.node.node.value());
    if (one.node.name == "node-" + number) continue;  // nodes { } gives it none
    notes.push_back("node " + number + " has two names: " + one.node.name + " in nodes { } of " +
                    answers.front().node.name + ", and " + one.own_name +
                    " in its own configuration");
  }
  return notes;
}

/// Says why a pool cannot be used. @return kExitBadInput if its address cannot be parsed.
int complain_about_pool(Console& console, const Error& error);

/// Says why a node did not answer. @return kExitNo.
int complain_about_node(Console& console, const NodeInfo& node, const Error& error);

/// Options of a command that shows a table.
struct TableOptions : PoolOptions {
  bool watch = false;
  Duration interval = std::chrono::seconds(2);
};

template <typename Answer>
int run_command(Console& console, const PoolCommand<Answer>& command, const TableOptions& options) {
  const TimePoint deadline = SteadyClock().now() + options.timeout;
  auto pool = open_pool(options, deadline);
  if (!pool) return complain_about_pool(console, pool.error());
  if (options.watch) {
    return watch(console, options.interval, [&] {
      const TimePoint end = SteadyClock().now() + options.timeout;
      const auto answers = ask_all<Answer>(*pool, end, command.ask);
      std::string text = to_table(command, answers, console.format());
      for (const auto& one : answers) {
        if (!one.answer) text += one.node.name + ": " + one.answer.error().message() + "\n";
      }
      for (const std::string& note : notes_on_names(answers)) text += note + "\n";
      return text;
    });
  }
  const auto answers = ask_all<Answer>(*pool, deadline, command.ask);
  console.print(console.json() ? to_json(command, answers)
                               : to_table(command, answers, console.format()));
  for (const std::string& note : notes_on_names(answers)) console.note(note);
  int exit_code = kExitDone;
  for (const auto& one : answers) {
    if (!one.answer) exit_code = complain_about_node(console, one.node, one.answer.error());
  }
  return exit_code;
}

/// Adds --tls to a command.
void add_tls(CLI::App& command, std::string& into);
/// Adds --pool and --tls to a command. @return --pool
CLI::Option* add_pool_address(CLI::App& command, PoolOptions& options);
/// The same and --timeout.
void add_pool_options(CLI::App& command, PoolOptions& options, const PoolOptions& defaults);

/// Adds --watch, --interval and the options above.
void add_table_options(CLI::App& command, TableOptions& options, const PoolOptions& defaults);

/// Below a group, whose name alone does the same.
template <typename Answer>
void add_pool_command(Program& program, CLI::App& above, const PoolOptions& defaults,
                      PoolCommand<Answer> command) {
  auto options = std::make_shared<TableOptions>();
  const auto run = [options, command](Console& console) {
    return run_command(console, command, *options);
  };
  CLI::App& added = program.add(above, command.name, command.about, run);
  add_table_options(added, *options, defaults);
  const bool alone = &above == &program.root();
  if (!alone) {
    add_table_options(above, *options, defaults);
    program.set_run(above, run);
    hide_options(above);
  }
  const std::string words = alone ? command.name : above.get_name() + " " + command.name;
  set_manual(added, {"All nodes are asked at once.",
                     {"hyperoffload " + words + " --pool tcp:127.0.0.1:7700 -o json"},
                     {{kExitDone, "all nodes answered"},
                      {kExitNo, "some node did not answer"},
                      {kExitPoolFailed, "the pool cannot be reached"}}});
}

}  // namespace ho::cli
