#include "tools/hyperoffload/pool/item_command.hpp"

#include <cctype>
#include <charconv>
#include <optional>
#include <utility>
#include <vector>

namespace ho::cli {

namespace {

struct Options : PoolOptions {
  std::vector<std::string> items;
};

struct Item {
  std::string node;  ///< its number or name; empty: the command finds it
  std::uint64_t number = 0;
};

std::optional<std::uint64_t> parse_whole(std::string_view text) {
  std::uint64_t number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size()) return std::nullopt;
  return number;
}

/// Parses "NODE:EXTENT", and "EXTENT" where the command finds the node.
std::optional<Item> parse_item(const ItemCommand& command, std::string_view text) {
  const std::size_t colon = text.rfind(':');
  const bool alone = colon == std::string_view::npos;
  const auto number = parse_whole(alone ? text : text.substr(colon + 1));
  const std::string node(alone ? "" : text.substr(0, colon));
  if (!number || (node.empty() && !(alone && command.has))) return std::nullopt;
  return Item{node, *number};
}

/// "NODE:EXTENT".
std::string item_form(const ItemCommand& command) {
  std::string form = "NODE:";
  for (const char c : command.item) {
    form += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return form;
}

Result<void> act_on(const ItemCommand& command, const PoolView& pool, const Item& item,
                    TimePoint deadline) {
  const auto nodes = find_nodes(pool, {item.node}, deadline);
  if (!nodes) return nodes.error();
  auto client = connect_node(pool, *nodes->front(), deadline);
  if (!client) return client.error();
  return command.act(**client, item.number, deadline);
}

/// The node of an item that was named by its number alone.
Result<std::string> find_node(const ItemCommand& command, const PoolView& pool,
                              std::uint64_t number, TimePoint deadline) {
  const auto answers = ask_all<bool>(pool, deadline, [&](ControlClient& client, TimePoint until) {
    return command.has(client, number, until);
  });
  std::optional<std::uint64_t> found;
  for (const auto& one : answers) {
    if (!one.answer) return one.answer.error().at("node " + std::to_string(one.node.node.value()));
    if (!*one.answer) continue;
    if (found) {
      return Error(Errc::kInvalidArgument, "nodes " + std::to_string(*found) + " and " +
                                               std::to_string(one.node.node.value()) +
                                               " have one; write " + item_form(command));
    }
    found = one.node.node.value();
  }
  if (!found) return Error(Errc::kNotFound, "no node has it; see hyperoffload " + command.shown_by);
  return std::to_string(*found);
}

int run_item_command(Console& console, const ItemCommand& command, const Options& options) {
  std::vector<Item> items;
  for (const std::string& text : options.items) {
    const auto item = parse_item(command, text);
    if (!item) {
      return console.refuse(
          Error(Errc::kInvalidArgument, "\"" + text + "\" is not " + item_form(command)));
    }
    items.push_back(*item);
  }
  auto pool = open_pool(options, SteadyClock().now() + options.timeout);
  if (!pool) return complain_about_pool(console, pool.error());
  int exit_code = kExitDone;
  JsonWriter json;
  json.begin_object().key(command.item + "s").begin_array();
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::string& name = options.items[i];
    const TimePoint deadline = SteadyClock().now() + options.timeout;
    const auto done = [&]() -> Result<void> {
      if (items[i].node.empty()) {
        const auto node = find_node(command, *pool, items[i].number, deadline);
        if (!node) return node.error();
        items[i].node = *node;
      }
      return act_on(command, *pool, items[i], deadline);
    }();
    json.begin_object().field(command.item, name).field(command.done, done.ok());
    if (!done) {
      json.field("error", done.error().message());
      exit_code = console.complain(done.error().at(command.item + " " + name), kExitNo);
    } else if (!console.json()) {
      console.print(command.done + " " + name);
    }
    json.end();
  }
  if (console.json()) console.print(std::move(json.end().end()).text());
  return exit_code;
}

}  // namespace

void add_item_command(Program& program, CLI::App& above, const PoolOptions& defaults,
                      const ItemCommand& command) {
  auto [added, options] = add_command<Options>(program, above, command.name, command.about,
                                               [command](Console& console, const Options& given) {
                                                 return run_item_command(console, command, given);
                                               });
  const std::string form = item_form(command);
  added
      .add_option(form.substr(form.find(':') + 1), options.items,
                  form + ", as " + command.shown_by + " shows them")
      ->required();
  add_pool_options(added, options, defaults);
  set_manual(added, command.manual);
}

}  // namespace ho::cli
