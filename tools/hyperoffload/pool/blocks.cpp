// blocks ls, blocks clear: show the content of a pool's KV block stores, and empty them by tenant.
#include <algorithm>
#include <string>

#include "common/base/units.hpp"
#include "common/text/utf8.hpp"
#include "tools/hyperoffload/pool/pool_command.hpp"

namespace ho::cli {

namespace {

/// Share of the keys that jobs asked for which were stored, such as "97 %"; "-": none.
std::string hit_rate(const BlocksModelReport& model) {
  const std::uint64_t all = model.hits + model.misses;
  if (all == 0) return "-";
  const double share = 100.0 * static_cast<double>(model.hits) / static_cast<double>(all);
  return std::to_string(static_cast<int>(share)) + " %";
}

PoolCommand<BlocksReport> listing() {
  PoolCommand<BlocksReport> command;
  command.name = "ls";
  command.about = "List what the pool's KV block stores hold, by tenant and model";
  command.ask = [](ControlClient& client, TimePoint deadline) {
    return client.blocks_list(deadline);
  };
  command.columns = {{"NODE", Table::kRight},
                     {"TENANT"},
                     {"MODEL"},
                     {"BLOCKS", Table::kRight},
                     {"BYTES", Table::kRight},
                     {"HITS", Table::kRight},
                     {"MISSES", Table::kRight},
                     {"RATE", Table::kRight},
                     {"EVICTED", Table::kRight},
                     {"IN DDR", Table::kRight, Table::kWide},
                     {"ON FLASH", Table::kRight, Table::kWide},
                     {"FLASH HITS", Table::kRight, Table::kWide},
                     {"PUTS", Table::kRight, Table::kWide},
                     {"TENANT HOLDS", Table::kRight, Table::kWide},
                     {"HOLDS ON FLASH", Table::kRight, Table::kWide}};
  command.add_rows = [](const NodeInfo& node, const BlocksReport& report, Table& table) {
    for (const BlocksTenantReport& tenant : report.tenants) {
      for (const BlocksModelReport& model : tenant.models) {
        table.add({std::to_string(node.node.value()), tenant.name, model.name,
                   std::to_string(model.blocks), format_bytes(model.bytes),
                   std::to_string(model.hits), std::to_string(model.misses), hit_rate(model),
                   std::to_string(model.evictions), format_bytes(model.ddr_bytes),
                   format_bytes(model.flash_bytes), std::to_string(model.flash_hits),
                   std::to_string(model.puts), format_bytes(tenant.held_bytes),
                   format_bytes(tenant.held_flash_bytes)});
      }
    }
  };
  command.add_json = [](const BlocksReport& report, JsonWriter& json) {
    json.field("capacity_bytes", report.capacity_bytes).field("flash_bytes", report.flash_bytes);
    json.key("tenants").begin_array();
    for (const BlocksTenantReport& tenant : report.tenants) {
      json.begin_object().field("tenant", tenant.name).field("held_bytes", tenant.held_bytes);
      json.field("held_flash_bytes", tenant.held_flash_bytes);
      json.key("models").begin_array();
      for (const BlocksModelReport& model : tenant.models) {
        json.begin_object()
            .field("model", model.name)
            .field("blocks", model.blocks)
            .field("bytes", model.bytes)
            .field("ddr_bytes", model.ddr_bytes)
            .field("flash_bytes", model.flash_bytes)
            .field("hits", model.hits)
            .field("flash_hits", model.flash_hits)
            .field("misses", model.misses)
            .field("puts", model.puts)
            .field("evictions", model.evictions)
            .end();
      }
      json.end().end();
    }
    json.end();
  };
  return command;
}

struct ClearOptions : PoolOptions {
  std::string tenant;
};

/// Asks every node. A node that does not know the tenant has none of its blocks.
int run_clear(Console& console, const ClearOptions& options) {
  if (!is_utf8(options.tenant)) {
    return console.refuse(Error(Errc::kInvalidArgument, "--tenant is not UTF-8"));
  }
  const TimePoint deadline = SteadyClock().now() + options.timeout;
  auto pool = open_pool(options, deadline);
  if (!pool) return complain_about_pool(console, pool.error());
  const auto answers =
      ask_all<BlocksCleared>(*pool, deadline, [&](ControlClient& client, TimePoint until) {
        return client.blocks_clear(options.tenant, until);
      });
  int exit_code = kExitDone;
  bool known = false;
  BlocksCleared sum;
  for (const auto& one : answers) {
    if (one.answer) {
      known = true;
      sum.blocks += one.answer->blocks;
      sum.bytes += one.answer->bytes;
    } else if (one.answer.error().code() != Errc::kNotFound) {
      exit_code = console.complain(
          one.answer.error().at("node " + std::to_string(one.node.node.value())), kExitNo);
    }
  }
  if (!known && exit_code == kExitDone) {
    exit_code = console.complain(
        Error(Errc::kNotFound, "no node has blocks of a tenant \"" + options.tenant +
                                   "\"; hyperoffload blocks ls shows their names"),
        kExitNo);
  }
  if (console.json()) {
    JsonWriter json;
    json.begin_object().field("tenant", options.tenant).field("cleared", known);
    json.field("blocks", sum.blocks).field("bytes", sum.bytes);
    console.print(std::move(json.end()).text());
  } else if (known) {
    console.print("cleared " + std::to_string(sum.blocks) + " blocks, " + format_bytes(sum.bytes));
  }
  return exit_code;
}

}  // namespace

void add_blocks(Program& program, const PoolOptions& defaults) {
  CLI::App& blocks = program.add_group("blocks", "List and clear KV blocks that jobs share");
  add_pool_command(program, blocks, defaults, listing());
  auto [clear, options] =
      add_command<ClearOptions>(program, blocks, "clear", "End all blocks of a tenant", run_clear);
  clear.add_option("--tenant", options.tenant, "as blocks ls shows it")->required();
  add_pool_options(clear, options, defaults);
  set_manual(clear,
             {"Blocks are copies: jobs that miss them compute them again. Run it on "
              "one node as root, as the daemon's user or as one in access { admins }; for the "
              "other nodes it needs a certificate of role admin.",
              {"hyperoffload blocks clear --tenant \"uid 1000/chat\""},
              {{kExitDone, "all of the tenant's blocks are gone"},
               {kExitNo, "no node knows the tenant, or some node refused; the message says why"},
               {kExitPoolFailed, "the pool cannot be reached"}}});
}

}  // namespace ho::cli
