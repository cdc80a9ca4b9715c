// flash: what takes space on the pool's flash, and freeing what nobody will come back for.
#include <charconv>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/units.hpp"
#include "tools/hyperoffload/pool_command.hpp"

namespace ho::cli {

namespace {

using Extents = std::vector<FlashExtentInfo>;

struct FlashOptions : PoolOptions {
  std::vector<std::string> free;
};

/// One extent, as people write it: NODE:EXTENT.
struct ExtentName {
  std::uint64_t node = 0;
  std::uint64_t extent = 0;
};

std::optional<ExtentName> parse_name(const std::string& text) {
  ExtentName name;
  const char* const end = text.data() + text.size();
  const auto node = std::from_chars(text.data(), end, name.node);
  if (node.ec != std::errc() || node.ptr == end || *node.ptr != ':') return std::nullopt;
  const auto extent = std::from_chars(node.ptr + 1, end, name.extent);
  if (extent.ec != std::errc() || extent.ptr != end) return std::nullopt;
  return name;
}

std::string policy_word(FlashPolicy policy) {
  return policy == FlashPolicy::kDurable ? "durable" : "scratch";
}

PoolCommand<Extents> listing() {
  PoolCommand<Extents> command;
  command.name = "flash";
  // A node without flash has none: status says why.
  command.ask = [](ControlClient& client, TimePoint deadline) -> Result<Extents> {
    auto extents = client.flash_extents(deadline);
    if (!extents && extents.error().code() == Errc::kUnsupported) return Extents();
    return extents;
  };
  command.heading = {"NODE", "EXTENT", "POLICY", "BYTES", "SESSION"};
  command.add_rows = [](const NodeInfo& node, const Extents& extents, Rows& rows) {
    for (const FlashExtentInfo& one : extents) {
      rows.push_back({std::to_string(node.node.value()), std::to_string(one.id),
                      policy_word(one.policy), format_bytes(one.length_bytes),
                      one.session.value() == 0 ? "-" : std::to_string(one.session.value())});
    }
  };
  command.add_json = [](const Extents& extents, JsonWriter& json) {
    json.key("extents").begin_array();
    for (const FlashExtentInfo& one : extents) {
      json.begin_object()
          .field("extent_id", one.id)
          .field("policy", policy_word(one.policy))
          .field("bytes", one.length_bytes)
          .field("session_id", one.session.value())
          .end();
    }
    json.end();
  };
  return command;
}

Result<void> free_one(const PoolView& pool, const ExtentName& name, TimePoint deadline) {
  for (const NodeInfo& node : pool.nodes) {
    if (node.node.value() != name.node) continue;
    auto client = connect_node(node, deadline);
    if (!client) return client.error();
    return (*client)->flash_erase(name.extent, deadline);
  }
  return Error(Errc::kNotFound, "the pool has no node " + std::to_string(name.node));
}

int free_extents(const FlashOptions& options) {
  std::vector<ExtentName> names;
  for (const std::string& text : options.free) {
    const auto name = parse_name(text);
    if (!name) {
      complain("flash", Error(Errc::kInvalidArgument, "\"" + text + "\" is not NODE:EXTENT"));
      return kExitBadInput;
    }
    names.push_back(*name);
  }
  auto pool = open_pool(options.pool, SteadyClock().now() + kPoolDeadline);
  if (!pool) {
    complain("flash", pool.error());
    return pool.error().code() == Errc::kInvalidArgument ? kExitBadInput : kExitPoolUnreachable;
  }
  int exit_code = kExitDone;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto freed = free_one(*pool, names[i], SteadyClock().now() + kPoolDeadline);
    if (freed) continue;
    complain("flash", freed.error().at("freeing " + options.free[i]));
    exit_code = kExitIllegal;
  }
  return exit_code;
}

}  // namespace

void add_flash(CLI::App& app, const std::string& pool, int& exit_code) {
  CLI::App* const sub =
      app.add_subcommand("flash", "What takes space on the pool's flash; with --free, frees it");
  auto options = std::make_shared<FlashOptions>();
  options->pool = pool;
  add_pool_options(*sub, *options);
  sub->add_option("--free", options->free,
                  "NODE:EXTENT ...: durable extents that no session has open. What they hold is "
                  "lost. On the extent's node, as root or the daemon's user");
  sub->footer(
      "A durable extent stays until it is freed, by the job that knows its name or here. Exit "
      "codes: 0 done; 1 some node did not answer or some extent is not freed; 2 bad usage; 3 the "
      "pool cannot be reached.\n"
      "Example: hyperoffload flash --free 0:17 0:18");
  sub->callback([options, command = listing(), &exit_code] {
    exit_code = options->free.empty() ? run_command(command, *options) : free_extents(*options);
  });
}

}  // namespace ho::cli
