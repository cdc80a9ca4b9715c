#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "tools/hyperoffload/pool/pool_command.hpp"

namespace ho::cli {

/// A command that acts on items of nodes, one after the other. Each is named NODE:NUMBER, or NUMBER
/// where one node alone has it.
struct ItemCommand {
  std::string name;      ///< "free"
  std::string about;     ///< for the help
  std::string item;      ///< "extent"; the JSON list is called "extents"
  std::string shown_by;  ///< the command that shows their names
  std::string done;      ///< "freed": what is printed for each, and its field in JSON
  std::function<Result<void>(ControlClient&, std::uint64_t number, TimePoint)> act;
  /// Whether the node has the item: finds the node of a NUMBER alone. Null: NODE: is required.
  std::function<Result<bool>(ControlClient&, std::uint64_t number, TimePoint)> has = {};
  Manual manual;
};

/// Adds the command below `above`. `pool` is the default of --pool. It exits with kExitNo if `act`
/// fails for an item, after it has acted on the others.
void add_item_command(Program& program, CLI::App& above, const PoolOptions& defaults,
                      const ItemCommand& command);

}  // namespace ho::cli
