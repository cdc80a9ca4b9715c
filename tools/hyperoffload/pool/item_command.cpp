#include "tools/hyperoffload/pool/item_command.hpp"

#include <cctype>
#include <charconv>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace ho::cli {

namespace {

struct Options : PoolOptions {
  std::vector<std::string> items;
};

struct Item {
  std::uint64_t node = 0;
  std::uint64_t number = 0;
};

std::optional<Item> parse_item(const std::string& text) {
  Item item;
  const char* const end = text.data() + text.size();
  const auto node = std::from_chars(text.data(), end, item.node);
  if (node.ec != std::errc() || node.ptr == end || *node.ptr != ':') return std::nullopt;
  const auto number = std::from_chars(node.ptr + 1, end, item.number);
  if (number.ec != std::errc() || number.ptr != end) return std::nullopt;
  return item;
}

/// Parses "NODE:EXTENT".
std::string item_form(const ItemCommand& command) {
  std::string form = "NODE:";
  for (const char c : command.item) {
    form += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return form;
}

Result<void> act_on(const ItemCommand& command, const PoolView& pool, const Item& item,
                    TimePoint deadline) {
  for (const NodeInfo& node : pool.nodes) {
    if (node.node.value() != item.node) continue;
    auto client = connect_node(pool, node, deadline);
    if (!client) return client.error();
    return command.act(**client, item.number, deadline);
  }
  return Error(Errc::kNotFound, "the pool has no node " + std::to_string(item.node));
}

int run(Console& console, const ItemCommand& command, const Options& options) {
  std::vector<Item> items;
  for (const std::string& text : options.items) {
    const auto item = parse_item(text);
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
    const auto done = act_on(command, *pool, items[i], SteadyClock().now() + options.timeout);
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
  auto options = std::make_shared<Options>();
  static_cast<PoolOptions&>(*options) = defaults;
  CLI::App& added =
      program.add(above, command.name, command.about,
                  [options, command](Console& console) { return run(console, command, *options); });
  const std::string form = item_form(command);
  added
      .add_option(form.substr(form.find(':') + 1), options->items,
                  form + ", as " + command.shown_by + " shows them")
      ->required();
  add_pool_options(added, *options);
  set_manual(added, command.manual);
}

}  // namespace ho::cli
