// status, nodes, sessions, segments: show the answers of a running pool's nodes.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/pool/paths/path_finder.hpp"
#include "common/base/units.hpp"
#include "common/text/json.hpp"
#include "common/transport/driver_names.hpp"
#include "proto/control/status_json.hpp"
#include "tools/hyperoffload/pool/job_paths.hpp"
#include "tools/hyperoffload/pool/pool_command.hpp"

namespace ho::cli {

namespace {

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const auto& word : words) out += (out.empty() ? "" : ",") + word;
  return out;
}

std::string milliseconds(std::uint64_t value) {
  // A broken node may answer anything, so avoid an overflow.
  return value < UINT64_MAX / 1'000'000 ? format_duration_ns(value * 1'000'000) : "?";
}

/// "3.10 GiB of 4.00 GiB free, 12.0 MiB written today", "off", "-".
std::string flash_words(const NodeStatus& status) {
  if (!status.flash_off.empty()) return "off";
  if (status.flash.empty()) return "-";
  std::uint64_t capacity = 0;
  std::uint64_t free = 0;
  std::uint64_t today = 0;
  bool read_only = false;
  std::uint64_t unused = 0;
  std::size_t encrypted = 0;
  for (const FlashPathStatus& path : status.flash) {
    capacity += path.capacity_bytes;
    free += path.free_bytes;
    today += path.written_today_bytes;
    read_only = read_only || path.read_only;
    unused += path.unused_bytes;
    encrypted += path.encrypted ? 1 : 0;
  }
  return format_bytes(free) + " of " + format_bytes(capacity) + " free, " + format_bytes(today) +
         " written today" + (unused > 0 ? ", " + format_bytes(unused) + " not used" : "") +
         (encrypted == status.flash.size() ? ", encrypted"
          : encrypted > 0                  ? ", partly encrypted"
                                           : "") +
         (read_only ? ", READ ONLY" : "");
}

/// "3.10 GiB", "off", "-".
std::string flash_free_words(const NodeStatus& status) {
  if (!status.flash_off.empty()) return "off";
  if (status.flash.empty()) return "-";
  std::uint64_t free = 0;
  for (const FlashPathStatus& path : status.flash) free += path.free_bytes;
  return format_bytes(free);
}

/// "0: 64.0 MiB of 1.00 GiB; 1: 0 B of 1.00 GiB", "-".
std::string numa_words(const NodeStatus& status) {
  std::string out;
  for (const NumaStatus& one : status.numa) {
    out += (out.empty() ? "" : "; ") + std::to_string(one.node.value()) + ": " +
           format_bytes(one.granted_bytes) + " of " + format_bytes(one.capacity_bytes);
  }
  return out.empty() ? "-" : out;
}

/// "TLS until 2027-01-31 12:00:00 UTC; INSECURE: tcp,ucx", "-".
std::string security_words(const NodeStatus& status) {
  std::string out;
  if (!status.certificate_ends.empty()) out = "TLS until " + status.certificate_ends;
  if (status.insecure) {
    out += (out.empty() ? "" : "; ") + std::string("INSECURE: ") +
           (status.unprotected.empty() ? "allowed, not used" : joined(status.unprotected));
  }
  return out.empty() ? "-" : out;
}

/// "static", "etcd", "etcd, in trouble for 12 s: unavailable: ...".
std::string membership_words(const MembershipStatus& membership) {
  if (membership.trouble.empty()) return membership.kind;
  return membership.kind + ", in trouble for " + milliseconds(membership.trouble_ms) + ": " +
         membership.trouble;
}

/// "2.00 GiB of 4.00 GiB", "2.00 GiB".
std::string of_quota(std::uint64_t bytes, const std::optional<std::uint64_t>& most) {
  return format_bytes(bytes) + (most ? " of " + format_bytes(*most) : "");
}

/// "uid 1000: DDR 2.00 GiB of 4.00 GiB, flash 1.00 GiB; job trainer: DDR 0 B of 1.00 GiB", "-".
std::string user_words(const NodeStatus& status) {
  std::string out;
  for (const UserStatus& user : status.users) {
    std::string words = "DDR " + of_quota(user.ddr_bytes, user.ddr_bytes_max);
    if (user.flash_bytes > 0 || user.flash_bytes_max) {
      words += ", flash " + of_quota(user.flash_bytes, user.flash_bytes_max);
    }
    if (user.blocks_bytes > 0 || user.blocks_bytes_max) {
      words += ", blocks " + of_quota(user.blocks_bytes, user.blocks_bytes_max);
    }
    if (user.link_in_bytes + user.link_out_bytes > 0) {
      words += ", tcp in " + format_bytes(user.link_in_bytes) + ", out " +
               format_bytes(user.link_out_bytes) + ", waited " + milliseconds(user.link_waited_ms);
    }
    out += (out.empty() ? "" : "; ") + user.owner + ": " + words;
  }
  return out.empty() ? "-" : out;
}

std::uint64_t refused(const NodeStatus& status) {
  std::uint64_t count = 0;
  for (const Refusal& one : status.refusals) count += one.count;
  return count;
}

/// A node's status, and how a job on this machine would reach its memory.
struct StatusAnswer {
  NodeStatus status;
  std::string path;         ///< empty: not at all
  std::string path_reason;  ///< why so
  std::vector<DriverOff> drivers_off;
  std::vector<DriverOffer> offers;
};

/// Asks a node, and finds the path to it that a job would take.
Result<StatusAnswer> ask_status(ControlClient& client, const JobPaths& paths, TimePoint deadline) {
  auto status = client.status(deadline);
  if (!status) return status.error();
  const HelloReply& hello = client.hello();
  const auto path = paths.explain(client, deadline);
  StatusAnswer answer{std::move(*status), "", "", hello.drivers_off, hello.drivers};
  answer.path = path ? path->driver : "";
  answer.path_reason = path ? path->reason : path.error().context();
  return answer;
}

/// "local,tcp (tcp: 2 rails; no ucx: this node has no RDMA device)"
std::string driver_words(const StatusAnswer& answer) {
  std::string off;
  for (const DriverOffer& one : answer.offers) {
    if (one.rails < 2) continue;
    off += (off.empty() ? "" : "; ") + one.driver + ": " + std::to_string(one.rails) + " rails";
  }
  for (const DriverOff& one : answer.drivers_off) {
    off += (off.empty() ? "" : "; ") + ("no " + one.driver + ": " + one.reason);
  }
  const std::string on = joined(answer.status.drivers);
  return off.empty() ? on : on + " (" + off + ")";
}

std::vector<Table::Column> status_columns() {
  return {{"NODE", Table::kRight},
          {"NAME"},
          {"STATE"},
          {"GRANTED", Table::kRight},
          {"CAPACITY", Table::kRight},
          {"FLASH FREE", Table::kRight},
          {"SESSIONS", Table::kRight},
          {"PATH"},
          {"UPTIME", Table::kRight},
          {"RACK", Table::kLeft, Table::kWide},
          {"SEGMENT", Table::kRight, Table::kWide},
          {"PAGES", Table::kLeft, Table::kWide},
          {"RESERVED", Table::kRight, Table::kWide},
          {"USERS", Table::kLeft, Table::kWide},
          {"NUMA", Table::kLeft, Table::kWide},
          {"FLASH", Table::kLeft, Table::kWide},
          {"DRIVERS", Table::kLeft, Table::kWide},
          {"SECURITY", Table::kLeft, Table::kWide},
          {"NODES KNOWN BY", Table::kLeft, Table::kWide},
          {"WHY THIS PATH", Table::kLeft, Table::kWide},
          {"REFUSED", Table::kRight, Table::kWide},
          {"VERSION", Table::kLeft, Table::kWide}};
}

/// "serving", "drained,INSECURE", "NO ETCD": a narrow column cuts the end, so what changes most
/// comes first.
std::string state_words(const NodeStatus& status) {
  std::vector<std::string> words;
  if (status.drained || status.draining)
    words.emplace_back(status.drained ? "drained" : "draining");
  if (!status.membership.trouble.empty()) words.emplace_back("NO ETCD");
  if (status.insecure) words.emplace_back("INSECURE");
  return words.empty() ? "serving" : joined(words);
}

void add_status_row(const NodeInfo& node, const StatusAnswer& answer, Table& table) {
  const NodeStatus& status = answer.status;
  table.add({std::to_string(node.node.value()),
             status.node_name,
             state_words(status),
             format_bytes(status.ddr_granted_bytes),
             format_bytes(status.ddr_capacity_bytes),
             flash_free_words(status),
             std::to_string(status.sessions),
             answer.path.empty() ? "none" : answer.path,
             milliseconds(status.uptime_ms),
             word_or_dash(status.rack),
             format_bytes(status.segment_bytes),
             status.page_kind,
             format_bytes(status.ddr_reserved_bytes),
             user_words(status),
             numa_words(status),
             flash_words(status),
             driver_words(answer),
             security_words(status),
             membership_words(status.membership),
             answer.path_reason,
             std::to_string(refused(status)),
             status.version});
}

/// The row of a silent node, in a table that begins with number, name and state.
std::vector<std::string> unreachable(const NodeInfo& node, std::size_t columns) {
  std::vector<std::string> cells(columns, "-");
  cells[0] = std::to_string(node.node.value());
  cells[1] = node.name;
  cells[2] = "unreachable";
  return cells;
}

void add_answer_json(const StatusAnswer& answer, JsonWriter& json) {
  add_status_json(answer.status, json);
  add_drivers_json(answer.offers, answer.drivers_off, json);
  json.field("path", answer.path).field("path_reason", answer.path_reason);
}

/// Formats the duration and the stall of the last step.
std::pair<std::string, std::string> last_step(const JobProgress& job) {
  return {format_duration_ns(job.last.back().duration_ns),
          format_duration_ns(job.last.back().stall_ns)};
}

}  // namespace

int complain_about_pool(Console& console, const Error& error) {
  const bool misspelt = error.code() == Errc::kInvalidArgument;
  return console.complain(error, misspelt ? kExitBadInput : kExitPoolFailed);
}

int complain_about_node(Console& console, const NodeInfo& node, const Error& error) {
  const std::string name = "node " + std::to_string(node.node.value()) + " (" + node.name + ")";
  return console.complain(error.at(name), kExitNo);
}

void add_tls(CLI::App& command, std::string& into) {
  command
      .add_option("--tls", into,
                  "over TCP, the folder of your certificate: node.crt, node.key and ca.crt "
                  "(default: $HYPEROFFLOAD_TLS, else without TLS)")
      ->type_name("FOLDER");
}

CLI::Option* add_pool_address(CLI::App& command, PoolOptions& options) {
  CLI::Option* const pool =
      command
          .add_option(
              "--pool", options.pool,
              "control addresses, comma-separated; the first that answers names the other "
              "nodes (default: $HYPEROFFLOAD_POOL, else unix:/run/hyperoffload/control.sock)")
          ->type_name("ADDRESS");
  add_tls(command, options.tls);
  return pool;
}

void add_pool_options(CLI::App& command, PoolOptions& options, const PoolOptions& defaults) {
  options = defaults;
  add_pool_address(command, options);
  add_timeout(command, options.timeout);
}

void add_table_options(CLI::App& command, TableOptions& options, const PoolOptions& defaults) {
  command.add_flag("--watch", options.watch, "show it again and again, until q or Ctrl-C");
  add_time(command, "--interval", options.interval, "with --watch, time between two looks",
           {std::chrono::milliseconds(100), std::chrono::hours(1)});
  add_pool_options(command, options, defaults);
}

void add_status(Program& program, const PoolOptions& defaults) {
  PoolCommand<StatusAnswer> command;
  command.name = "status";
  command.about = "Memory, flash, sessions and state of every node, and how a job reaches it";
  const auto paths = std::make_shared<JobPaths>(*transport::parse_driver_names("auto"));
  command.ask = [paths](ControlClient& client, TimePoint deadline) {
    return ask_status(client, *paths, deadline);
  };
  command.columns = status_columns();
  command.add_rows = add_status_row;
  command.add_json = add_answer_json;
  command.unreachable_row = [columns = command.columns.size()](const NodeInfo& node) {
    return unreachable(node, columns);
  };
  add_pool_command(program, program.root(), defaults, command);
}

void add_nodes(Program& program, const PoolOptions& defaults) {
  PoolCommand<NodeStatus> command;
  command.name = "nodes";
  command.about = "The nodes of the pool and where they are reached";
  command.ask = [](ControlClient& client, TimePoint deadline) { return client.status(deadline); };
  command.columns = {{"NODE", Table::kRight},
                     {"NAME"},
                     {"STATE"},
                     {"ADDRESSES"},
                     {"KNOWN BY", Table::kLeft, Table::kWide}};
  command.add_rows = [](const NodeInfo& node, const NodeStatus& status, Table& table) {
    table.add({std::to_string(node.node.value()), node.name, state_words(status),
               joined(node.control_addresses), membership_words(status.membership)});
  };
  command.add_json = [](const NodeStatus& status, JsonWriter& json) {
    json.field("draining", status.draining).field("drained", status.drained);
    add_membership_json(status.membership, json);
  };
  command.unreachable_row = [](const NodeInfo& node) {
    auto cells = unreachable(node, 5);
    cells[3] = joined(node.control_addresses);
    return cells;
  };
  add_pool_command(program, program.root(), defaults, command);
}

void add_sessions(Program& program, const PoolOptions& defaults) {
  using Answer = std::vector<SessionInfo>;
  PoolCommand<Answer> command;
  command.name = "sessions";
  command.about = "Which jobs hold memory of the pool, how much and until when";
  command.ask = [](ControlClient& client, TimePoint deadline) { return client.sessions(deadline); };
  command.columns = {{"NODE", Table::kRight},
                     {"SESSION", Table::kRight},
                     {"JOB"},
                     {"PID", Table::kRight},
                     {"GRANTED", Table::kRight},
                     {"LEASE", Table::kRight},
                     {"AGE", Table::kRight},
                     {"PEER"},
                     {"STEPS", Table::kRight, Table::kWide},
                     {"STEP", Table::kRight, Table::kWide},
                     {"PLANNED", Table::kRight, Table::kWide},
                     {"STALL", Table::kRight, Table::kWide}};
  command.add_rows = [](const NodeInfo& node, const Answer& sessions, Table& table) {
    for (const auto& one : sessions) {
      const JobProgress& job = one.progress;
      table.add({std::to_string(node.node.value()), std::to_string(one.id.value()), one.name,
                 std::to_string(one.pid), format_bytes(one.granted_bytes),
                 milliseconds(one.lease_left_ms), milliseconds(one.age_ms), one.peer,
                 std::to_string(job.steps), job.last.empty() ? "-" : last_step(job).first,
                 job.steps == 0 ? "-" : format_duration_ns(job.predicted_step_ns),
                 job.last.empty() ? "-" : last_step(job).second});
    }
  };
  command.add_json = [](const Answer& sessions, JsonWriter& json) {
    json.key("sessions").begin_array();
    for (const auto& one : sessions) {
      json.begin_object();
      add_session_json(one, json);
      json.end();
    }
    json.end();
  };
  add_pool_command(program, program.root(), defaults, command);
}

void add_segments(Program& program, const PoolOptions& defaults) {
  using Answer = std::vector<SegmentInfo>;
  PoolCommand<Answer> command;
  command.name = "segments";
  command.about = "Every granted segment of memory";
  command.ask = [](ControlClient& client, TimePoint deadline) { return client.segments(deadline); };
  command.columns = {{"NODE", Table::kRight},
                     {"SEGMENT", Table::kRight},
                     {"ADDRESS"},
                     {"BYTES", Table::kRight},
                     {"SESSION", Table::kRight},
                     {"DRIVER"},
                     {"PAGES"},
                     {"NUMA"}};
  command.add_rows = [](const NodeInfo& node, const Answer& segments, Table& table) {
    for (const auto& one : segments) {
      table.add({std::to_string(node.node.value()), std::to_string(one.id.value()),
                 one.address.text(), format_bytes(one.length_bytes),
                 std::to_string(one.session.value()), one.driver, one.page_kind,
                 one.numa ? std::to_string(one.numa->value()) : "-"});
    }
  };
  command.add_json = [](const Answer& segments, JsonWriter& json) {
    json.key("segments").begin_array();
    for (const auto& one : segments) {
      json.begin_object()
          .field("segment_id", one.id.value())
          .field("address", one.address.text())
          .field("bytes", one.length_bytes)
          .field("session_id", one.session.value())
          .field("driver", one.driver)
          .field("page_kind", one.page_kind);
      if (one.numa) json.field("numa_node", one.numa->value());
      json.end();
    }
    json.end();
  };
  add_pool_command(program, program.root(), defaults, command);
}

}  // namespace ho::cli
