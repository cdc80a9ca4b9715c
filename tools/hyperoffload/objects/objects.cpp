// objects ls: shows the published objects of a pool.
#include <string>
#include <vector>

#include "common/base/units.hpp"
#include "common/cli/layout.hpp"
#include "tools/hyperoffload/pool/pool_command.hpp"

namespace ho::cli {

namespace {

using Objects = std::vector<ObjectInfo>;

std::string hex(std::uint64_t number) {
  return formatted("%016llx", static_cast<unsigned long long>(number));
}

PoolCommand<Objects> listing() {
  PoolCommand<Objects> command;
  command.name = "ls";
  command.about = "List the parts of published objects that each node holds";
  command.ask = [](ControlClient& client, TimePoint deadline) { return client.objects(deadline); };
  command.columns = {{"NODE", Table::kRight},
                     {"OBJECT"},
                     {"VERSION", Table::kRight},
                     {"PART", Table::kRight},
                     {"BYTES", Table::kRight},
                     {"READERS", Table::kRight},
                     {"AGE", Table::kRight},
                     {"SESSION", Table::kRight, Table::kWide},
                     {"RUN", Table::kRight, Table::kWide}};
  command.add_rows = [](const NodeInfo& node, const Objects& objects, Table& table) {
    for (const ObjectInfo& one : objects) {
      table.add({std::to_string(node.node.value()), one.name, std::to_string(one.version),
                 std::to_string(one.part) + " of " + std::to_string(one.parts),
                 format_bytes(one.length_bytes), std::to_string(one.readers),
                 format_duration_ns(one.age_ms * 1'000'000), std::to_string(one.session.value()),
                 hex(one.run)});
    }
  };
  command.add_json = [](const Objects& objects, JsonWriter& json) {
    json.key("objects").begin_array();
    for (const ObjectInfo& one : objects) {
      json.begin_object()
          .field("object", one.name)
          .field("version", one.version)
          .field("part", one.part)
          .field("parts", one.parts)
          .field("bytes", one.length_bytes)
          .field("readers", one.readers)
          .field("age_ms", one.age_ms)
          .field("session_id", one.session.value())
          .field("run", hex(one.run))
          .end();
    }
    json.end();
  };
  return command;
}

}  // namespace

void add_objects(Program& program, const PoolOptions& defaults) {
  CLI::App& objects = program.add_group(
      "objects", "List tensors that programs publish, lay them out anew, and save them");
  add_pool_command(program, objects, defaults, listing());
  add_objects_reshard(program, objects, defaults);
  add_objects_save(program, objects, defaults);
}

}  // namespace ho::cli
