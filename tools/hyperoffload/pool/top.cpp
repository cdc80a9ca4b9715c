// top: shows what moves in a pool now.
#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/units.hpp"
#include "common/cli/layout.hpp"
#include "common/text/json.hpp"
#include "tools/hyperoffload/pool/pool_command.hpp"
#include "tools/hyperoffload/pool/screen.hpp"

namespace ho::cli {
namespace {

struct TopOptions {
  PoolOptions pool;
  Duration interval = std::chrono::seconds(2);
  std::uint64_t count = 0;  ///< tables to print; 0: one, or without end on a terminal
};

/// A node's answer at one time.
struct Sample {
  TimePoint taken;
  NodeStatus status;
  std::vector<SessionInfo> sessions;
};
using Samples = std::vector<NodeAnswer<Sample>>;

Samples take_samples(const PoolView& pool, Duration timeout) {
  const std::function<Result<Sample>(ControlClient&, TimePoint)> ask =
      [](ControlClient& client, TimePoint deadline) -> Result<Sample> {
    auto status = client.status(deadline);
    if (!status) return status.error();
    auto sessions = client.sessions(deadline);
    if (!sessions) return sessions.error();
    return Sample{SteadyClock().now(), std::move(*status), std::move(*sessions)};
  };
  return ask_all<Sample>(pool, SteadyClock().now() + timeout, ask);
}

/// Bytes per second by class: those that a daemon served, or those of a job's steps.
struct Rates {
  double in = 0;         ///< out of the pool's memory: prefetches
  double out = 0;        ///< into it: stores
  double stage_in = 0;   ///< flash to memory
  double stage_out = 0;  ///< memory to flash

  [[nodiscard]] double flash() const { return stage_in + stage_out; }
};

/// The changes between two samples.
struct SessionRow {
  SessionInfo session;
  Rates rates;
  double steps_per_s = 0;
  std::optional<double> stall;  ///< share of the last steps; nullopt: the job reports none
};
struct NodeRow {
  NodeInfo node;
  std::optional<Error> error;
  std::uint64_t granted_bytes = 0;
  Rates rates;
  std::vector<SessionRow> sessions;
};

double moved(const SessionRow& row) { return row.rates.in + row.rates.out; }

double growth(std::uint64_t before, std::uint64_t now, double seconds) {
  return now > before && seconds > 0 ? static_cast<double>(now - before) / seconds : 0;
}

Rates rates_of(const NodeStatus& before, const NodeStatus& now, double seconds) {
  Rates out;
  for (std::size_t i = 0; i < std::min(before.traffic.size(), now.traffic.size()); ++i) {
    const TrafficStatus& one = now.traffic[i];
    const double rate = growth(before.traffic[i].bytes, one.bytes, seconds);
    const bool get = one.direction == "get";
    if (one.tier == "flash") {
      (get ? out.stage_in : out.stage_out) += rate;
    } else {
      (get ? out.in : out.out) += rate;
    }
  }
  return out;
}

SessionRow row_of(const SessionInfo& now, const SessionInfo* before, double seconds) {
  SessionRow row{now, {}, 0, {}};
  const JobProgress& job = now.progress;
  double spent = 0;
  double stalled = 0;
  for (const StepTime& step : job.last) {
    spent += static_cast<double>(step.duration_ns);
    stalled += static_cast<double>(step.stall_ns);
  }
  if (spent > 0) row.stall = stalled / spent;
  if (before == nullptr) return row;
  const JobProgress& old = before->progress;
  row.rates.in = growth(old.prefetch_bytes, job.prefetch_bytes, seconds);
  row.rates.out = growth(old.store_bytes, job.store_bytes, seconds);
  row.rates.stage_in = growth(old.stage_in_bytes, job.stage_in_bytes, seconds);
  row.rates.stage_out = growth(old.stage_out_bytes, job.stage_out_bytes, seconds);
  row.steps_per_s = growth(old.steps, job.steps, seconds);
  return row;
}

std::vector<NodeRow> rows_of(const Samples& before, const Samples& now) {
  std::vector<NodeRow> rows;
  for (std::size_t i = 0; i < now.size(); ++i) {
    NodeRow row{now[i].node, {}, 0, {}, {}};
    if (!now[i].answer) {
      row.error = now[i].answer.error();
      rows.push_back(std::move(row));
      continue;
    }
    const Sample& sample = *now[i].answer;
    const Sample* const old = before[i].answer ? &*before[i].answer : nullptr;
    const double seconds =
        old == nullptr ? 0 : std::chrono::duration<double>(sample.taken - old->taken).count();
    row.granted_bytes = sample.status.ddr_granted_bytes;
    if (old != nullptr) row.rates = rates_of(old->status, sample.status, seconds);
    std::map<SessionId, const SessionInfo*> known;
    if (old != nullptr) {
      for (const SessionInfo& session : old->sessions) known[session.id] = &session;
    }
    for (const SessionInfo& session : sample.sessions) {
      row.sessions.push_back(row_of(session, known[session.id], seconds));
    }
    std::stable_sort(row.sessions.begin(), row.sessions.end(),
                     [](const SessionRow& a, const SessionRow& b) { return moved(a) > moved(b); });
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string rate_words(double bytes_per_s) {
  return bytes_per_s < 1 ? "-" : format_bytes(static_cast<std::uint64_t>(bytes_per_s));
}

std::string to_table(const std::vector<NodeRow>& rows, Format format) {
  Table table({{"NODE", Table::kRight},
               {"SESSION", Table::kRight},
               {"NAME"},
               {"GRANTED", Table::kRight},
               {"IN/s", Table::kRight},
               {"OUT/s", Table::kRight},
               {"FLASH/s", Table::kRight},
               {"STEPS/s", Table::kRight},
               {"STALL", Table::kRight},
               {"STAGE IN/s", Table::kRight, Table::kWide},
               {"STAGE OUT/s", Table::kRight, Table::kWide}});
  for (const NodeRow& row : rows) {
    const std::string number = std::to_string(row.node.node.value());
    table.add({number, "all", row.node.name,
               row.error ? "unreachable" : format_bytes(row.granted_bytes),
               rate_words(row.rates.in), rate_words(row.rates.out), rate_words(row.rates.flash()),
               "", "", rate_words(row.rates.stage_in), rate_words(row.rates.stage_out)});
    for (const SessionRow& one : row.sessions) {
      table.add({number, std::to_string(one.session.id.value()), one.session.name,
                 format_bytes(one.session.granted_bytes), rate_words(one.rates.in),
                 rate_words(one.rates.out), rate_words(one.rates.flash()),
                 one.stall ? formatted("%.1f", one.steps_per_s) : "-",
                 one.stall ? formatted("%.1f", *one.stall * 100) + " %" : "-",
                 rate_words(one.rates.stage_in), rate_words(one.rates.stage_out)});
    }
  }
  return table.text(format);
}

void add_rates(const Rates& rates, JsonWriter& json) {
  json.field("in_bytes_per_s", rates.in)
      .field("out_bytes_per_s", rates.out)
      .field("flash_bytes_per_s", rates.flash())
      .field("stage_in_bytes_per_s", rates.stage_in)
      .field("stage_out_bytes_per_s", rates.stage_out);
}

std::string to_json(const std::vector<NodeRow>& rows) {
  JsonWriter json;
  json.begin_object().key("nodes").begin_array();
  for (const NodeRow& row : rows) {
    json.begin_object()
        .field("node_id", std::uint64_t{row.node.node.value()})
        .field("name", row.node.name)
        .field("reachable", !row.error);
    if (row.error) {
      json.field("error", row.error->message()).end();
      continue;
    }
    json.field("granted_bytes", row.granted_bytes);
    add_rates(row.rates, json);
    json.key("sessions").begin_array();
    for (const SessionRow& one : row.sessions) {
      json.begin_object()
          .field("session_id", one.session.id.value())
          .field("name", one.session.name)
          .field("granted_bytes", one.session.granted_bytes);
      add_rates(one.rates, json);
      json.field("steps_per_s", one.steps_per_s);
      if (one.stall) json.field("stall_share", *one.stall);
      json.end();
    }
    json.end().end();
  }
  return std::move(json.end().end()).text();
}

/// Runs on a terminal until a key, a signal or the count ends it.
int run_live(const PoolView& pool, const TopOptions& options) {
  Screen screen;
  Samples before = take_samples(pool, options.pool.timeout);
  for (std::uint64_t shown = 0; options.count == 0 || shown < options.count; ++shown) {
    switch (screen.wait(shown == 0 ? std::min<Duration>(options.interval, std::chrono::seconds(1))
                                   : options.interval)) {
      case Screen::Key::kQuit: return kExitDone;
      case Screen::Key::kInterrupt: return kExitInterrupted;
      case Screen::Key::kNone: break;
    }
    Samples now = take_samples(pool, options.pool.timeout);
    screen.show(to_table(rows_of(before, now), Format::kTable) + "q quits\n");
    before = std::move(now);
  }
  return kExitDone;
}

int run_top(Console& console, const TopOptions& options) {
  auto pool = open_pool(options.pool, SteadyClock().now() + options.pool.timeout);
  if (!pool) return complain_about_pool(console, pool.error());
  if (on_terminal() && console.format() == Format::kTable) return run_live(*pool, options);
  if (console.json() && options.count > 1) {
    return console.refuse(Error(Errc::kInvalidArgument, "--count: -o json prints one object"));
  }
  Samples before = take_samples(*pool, options.pool.timeout);
  int exit_code = kExitDone;
  for (std::uint64_t i = 0; i < std::max<std::uint64_t>(options.count, 1); ++i) {
    std::this_thread::sleep_for(options.interval);
    Samples now = take_samples(*pool, options.pool.timeout);
    const auto rows = rows_of(before, now);
    console.print(console.json() ? to_json(rows) : to_table(rows, console.format()));
    for (const NodeRow& row : rows) {
      if (row.error) exit_code = complain_about_node(console, row.node, *row.error);
    }
    if (!console.flush()) return exit_code;  // Program says why
    before = std::move(now);
  }
  return exit_code;
}

}  // namespace

void add_top(Program& program, const PoolOptions& defaults) {
  auto [added, options] = add_command<TopOptions>(
      program, program.root(), "top", "What moves in the pool now, by node and session", run_top);
  add_time(added, "--interval", options.interval, "time between two looks",
           {std::chrono::milliseconds(100), std::chrono::hours(1)});
  add_count(added, "--count", options.count,
            "tables to print (default: one; on a terminal, until q)", {1, 1'000'000});
  add_pool_options(added, options.pool, defaults);
  set_manual(
      added,
      {"On a terminal it goes on until q. A node's line has what its daemon served over tcp and "
       "to flash; a session's line has what its job reports with each renewal of its lease: bytes "
       "by class: to the device (IN), from the device (OUT) and of flash, with -o wide in each "
       "direction; steps, and the share of its last steps that waited for transfers.",
       {"hyperoffload top --pool tcp:127.0.0.1:7700", "hyperoffload top -o json --interval 10s"},
       {{kExitDone, "all nodes answered, or q"},
        {kExitNo, "some node did not answer"},
        {kExitPoolFailed, "the pool cannot be reached"}}});
}

}  // namespace ho::cli
