// flash ls, flash free: what takes space on the pool's flash, and giving back what no job will.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/units.hpp"
#include "tools/hyperoffload/pool_command.hpp"

namespace ho::cli {

namespace {

using Extents = std::vector<FlashExtentInfo>;

struct FreeOptions : PoolOptions {
  std::vector<std::string> extents;
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

std::string word_or_dash(const std::string& word) { return word.empty() ? "-" : word; }

std::uint64_t seconds(std::chrono::seconds time) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(time.count(), 0));
}

/// In days from two days on.
std::string time_words(std::chrono::seconds time) {
  constexpr auto kDay = std::chrono::seconds(std::chrono::days(1));
  if (time >= 2 * kDay) return std::to_string(time / kDay) + " d";
  return format_duration_ns(seconds(time) * 1'000'000'000);
}

PoolCommand<Extents> listing() {
  constexpr auto kRight = Table::Align::kRight;
  PoolCommand<Extents> command;
  command.name = "ls";
  command.about = "List the extents on the pool's flash";
  // A node without flash has none: status says why.
  command.ask = [](ControlClient& client, TimePoint deadline) -> Result<Extents> {
    auto extents = client.flash_extents(deadline);
    if (!extents && extents.error().code() == Errc::kUnsupported) return Extents();
    return extents;
  };
  command.columns = {{"NODE", Table::Shown::kAlways, kRight},
                     {"EXTENT", Table::Shown::kAlways, kRight},
                     {"POLICY"},
                     {"BYTES", Table::Shown::kAlways, kRight},
                     {"SESSION", Table::Shown::kAlways, kRight},
                     {"OWNER"},
                     {"LABEL"},
                     {"AGE", Table::Shown::kAlways, kRight},
                     {"UNUSED", Table::Shown::kWide, kRight},
                     {"FREED IN", Table::Shown::kWide, kRight}};
  command.add_rows = [](const NodeInfo& node, const Extents& extents, Table& table) {
    for (const FlashExtentInfo& one : extents) {
      table.add({std::to_string(node.node.value()), std::to_string(one.id), policy_word(one.policy),
                 format_bytes(one.length_bytes),
                 one.session.value() == 0 ? "-" : std::to_string(one.session.value()),
                 word_or_dash(one.owner), word_or_dash(one.label), time_words(one.age),
                 time_words(one.unused), one.left ? time_words(*one.left) : "-"});
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
          .field("owner", one.owner)
          .field("label", one.label)
          .field("age_s", seconds(one.age))
          .field("unused_s", seconds(one.unused));
      if (one.left) json.field("left_s", seconds(*one.left));
      json.end();
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

int free_extents(Console& console, const FreeOptions& options) {
  std::vector<ExtentName> names;
  for (const std::string& text : options.extents) {
    const auto name = parse_name(text);
    if (!name) {
      return console.refuse(Error(Errc::kInvalidArgument, "\"" + text + "\" is not NODE:EXTENT"));
    }
    names.push_back(*name);
  }
  auto pool = open_pool(options.pool, SteadyClock().now() + options.timeout);
  if (!pool) return complain_about_pool(console, pool.error());
  int exit_code = kExitDone;
  JsonWriter json;
  json.begin_object().key("extents").begin_array();
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto freed = free_one(*pool, names[i], SteadyClock().now() + options.timeout);
    json.begin_object().field("extent", options.extents[i]).field("freed", freed.ok());
    if (!freed) {
      json.field("error", freed.error().message());
      exit_code = console.complain(freed.error().at("freeing " + options.extents[i]), kExitNo);
    } else if (!console.json()) {
      console.print("freed " + options.extents[i]);
    }
    json.end();
  }
  if (console.json()) console.print(std::move(json.end().end()).text());
  return exit_code;
}

}  // namespace

void add_flash(Program& program, const std::string& pool) {
  CLI::App& flash = program.add_group("flash", "List and free what lies on the pool's flash");
  add_pool_command(program, flash, pool, listing());
  auto options = std::make_shared<FreeOptions>();
  options->pool = pool;
  CLI::App& command =
      program.add(flash, "free", "Free durable extents that no session has open",
                  [options](Console& console) { return free_extents(console, *options); });
  command.add_option("EXTENT", options->extents, "NODE:EXTENT, as flash ls shows them")->required();
  add_pool_options(command, *options);
  set_manual(command,
             {"A durable extent stays until it is freed, by the job that knows its name or "
              "by this command. What it holds is lost. Run it on the extent's node, as root "
              "or as the daemon's user.",
              {"hyperoffload flash free 0:17 0:18"},
              {{kExitDone, "all are freed"},
               {kExitNo, "some extent is not freed; the message says why"},
               {kExitPoolFailed, "the pool cannot be reached"}}});
}

}  // namespace ho::cli
