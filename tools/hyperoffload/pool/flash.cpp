// flash ls, flash free: show the extents on the pool's flash, and free those that no job will.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/units.hpp"
#include "tools/hyperoffload/pool/item_command.hpp"
#include "tools/hyperoffload/pool/pool_command.hpp"

namespace ho::cli {

namespace {

using Extents = std::vector<FlashExtentInfo>;

std::string policy_word(FlashPolicy policy) {
  return policy == FlashPolicy::kDurable ? "durable" : "scratch";
}

std::uint64_t seconds(std::chrono::seconds time) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(time.count(), 0));
}

/// Formats an age; two days and more as days.
std::string time_words(std::chrono::seconds time) {
  constexpr auto kDay = std::chrono::seconds(std::chrono::days(1));
  if (time >= 2 * kDay) return std::to_string(time / kDay) + " d";
  return format_duration_ns(seconds(time) * 1'000'000'000);
}

PoolCommand<Extents> listing() {
  PoolCommand<Extents> command;
  command.name = "ls";
  command.about = "List the extents on the pool's flash";
  // Does not list nodes without flash; status shows why they have none.
  command.ask = [](ControlClient& client, TimePoint deadline) -> Result<Extents> {
    auto extents = client.flash_extents(deadline);
    if (!extents && extents.error().code() == Errc::kUnsupported) return Extents();
    return extents;
  };
  command.columns = {{"NODE", Table::kRight},
                     {"EXTENT", Table::kRight},
                     {"POLICY"},
                     {"BYTES", Table::kRight},
                     {"SESSION", Table::kRight},
                     {"OWNER"},
                     {"LABEL"},
                     {"AGE", Table::kRight},
                     {"UNUSED", Table::kRight, Table::kWide},
                     {"FREED IN", Table::kRight, Table::kWide}};
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

}  // namespace

void add_flash(Program& program, const PoolOptions& defaults) {
  CLI::App& flash = program.add_group("flash", "List and free what lies on the pool's flash");
  add_pool_command(program, flash, defaults, listing());
  ItemCommand command;
  command.name = "free";
  command.about = "Free durable extents that no session has open";
  command.item = "extent";
  command.shown_by = "flash ls";
  command.done = "freed";
  command.act = [](ControlClient& client, std::uint64_t extent, TimePoint deadline) {
    return client.flash_erase(extent, deadline);
  };
  command.manual = {
      "A durable extent stays until the job that knows its name frees it, this command does, or no "
      "session had it open for flash_unused_s_max of the node's configuration. What it holds is "
      "lost. Run it on the extent's node as root, as the daemon's user or as one in access "
      "{ admins }, or anywhere with a certificate of role admin.",
      {"hyperoffload flash free 0:17 0:18"},
      {{kExitDone, "all are freed"},
       {kExitNo, "some extent is not freed; the message says why"},
       {kExitPoolFailed, "the pool cannot be reached"}}};
  add_item_command(program, flash, defaults, command);
}

}  // namespace ho::cli
