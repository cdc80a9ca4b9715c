// events: shows past and new events of a pool.
#include <algorithm>
#include <chrono>
#include <ctime>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/text/json.hpp"
#include "tools/hyperoffload/pool/pool_command.hpp"

namespace ho::cli {

namespace {

struct EventsOptions {
  PoolOptions pool;
  std::vector<std::string> kinds;  ///< to show; empty: all
  std::uint64_t last = 100;        ///< events to begin with
  bool follow = false;
  Duration interval = std::chrono::seconds(1);
};

/// A node's answer, and which daemon gave it: a restarted daemon numbers its events anew.
struct EventsAnswer {
  std::uint64_t instance = 0;
  EventsPage page;
};
using Answers = std::vector<NodeAnswer<EventsAnswer>>;

/// The last known event of a node.
struct Known {
  std::uint64_t instance = 0;
  std::uint64_t last = 0;
};
using KnownByNode = std::map<NodeId, Known>;

Answers ask(const PoolView& pool, const KnownByNode& known, Duration timeout) {
  const std::function<Result<EventsAnswer>(ControlClient&, TimePoint)> one =
      [&known](ControlClient& client, TimePoint deadline) -> Result<EventsAnswer> {
    const HelloReply& hello = client.hello();
    const auto found = known.find(hello.node);
    const bool same = found != known.end() && found->second.instance == hello.daemon_instance;
    auto page = client.events(same ? found->second.last : 0, deadline);
    if (!page) return page.error();
    return EventsAnswer{hello.daemon_instance, std::move(*page)};
  };
  return ask_all<EventsAnswer>(pool, SteadyClock().now() + timeout, one);
}

/// An event and its node.
struct Row {
  std::string node;
  std::uint64_t node_id = 0;
  EventInfo event;
};

bool shown(const EventInfo& event, const std::vector<std::string>& kinds) {
  const std::string_view name = kEventKindNames.at(static_cast<std::size_t>(event.kind));
  return kinds.empty() || std::find(kinds.begin(), kinds.end(), name) != kinds.end();
}

/// Sorts by the clocks of the nodes.
std::vector<Row> rows_of(const Answers& answers, const std::vector<std::string>& kinds) {
  std::vector<Row> rows;
  for (const auto& one : answers) {
    if (!one.answer) continue;
    for (const EventInfo& event : one.answer->page.events) {
      if (shown(event, kinds)) rows.push_back({one.node.name, one.node.node.value(), event});
    }
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const Row& a, const Row& b) { return a.event.time_ms < b.event.time_ms; });
  return rows;
}

std::string time_words(std::uint64_t time_ms, const char* form) {
  const auto seconds = static_cast<std::time_t>(time_ms / 1000);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  std::array<char, 64> text{};
  std::strftime(text.data(), text.size(), form, &parts);
  return text.data();
}

std::string number_or_dash(SessionId session) {
  return session.value() == 0 ? "-" : std::to_string(session.value());
}

std::string to_table(const std::vector<Row>& rows, Format format) {
  Table table({{"TIME (UTC)"},
               {"NODE"},
               {"KIND"},
               {"EVENT"},
               {"SESSION", Table::kRight},
               {"WHO"},
               {"DETAIL", Table::kLeft, Table::kWide}});
  const bool wide = format == Format::kWide;
  for (const Row& row : rows) {
    table.add({time_words(row.event.time_ms, wide ? "%Y-%m-%dT%H:%M:%SZ" : "%m-%d %H:%M:%S"),
               row.node, std::string(kEventKindNames.at(static_cast<std::size_t>(row.event.kind))),
               row.event.what, number_or_dash(row.event.session), word_or_dash(row.event.who),
               row.event.detail});
  }
  return table.text(format);
}

/// Formats one event, as one of a sequence of lines.
std::string to_line(const Row& row) {
  const EventInfo& event = row.event;
  std::string line = time_words(event.time_ms, "%Y-%m-%dT%H:%M:%SZ") + " " + row.node + " " +
                     std::string(kEventKindNames.at(static_cast<std::size_t>(event.kind))) + ": " +
                     event.what;
  if (event.session.value() != 0) line += " session=" + std::to_string(event.session.value());
  if (!event.who.empty()) line += " (" + event.who + ")";
  if (!event.detail.empty()) line += " " + event.detail;
  return printable(line) + "\n";
}

void add_json(const Row& row, JsonWriter& json) {
  json.begin_object()
      .field("node_id", row.node_id)
      .field("node", row.node)
      .field("number", row.event.number)
      .field("time_ms", row.event.time_ms)
      .field("kind", std::string(kEventKindNames.at(static_cast<std::size_t>(row.event.kind))))
      .field("event", row.event.what);
  if (row.event.session.value() != 0) json.field("session_id", row.event.session.value());
  json.field("who", row.event.who).field("detail", row.event.detail).end();
}

std::string to_json(const std::vector<Row>& rows, std::uint64_t lost) {
  JsonWriter json;
  json.begin_object().key("events").begin_array();
  for (const Row& row : rows) add_json(row, json);
  return std::move(json.end().field("lost", lost).end()).text();
}

void learn(const Answers& answers, KnownByNode& known) {
  for (const auto& one : answers) {
    if (one.answer) known[one.node.node] = {one.answer->instance, one.answer->page.last};
  }
}

void cut_to(std::vector<Row>& rows, std::uint64_t last) {
  if (rows.size() > last) rows.erase(rows.begin(), rows.end() - static_cast<std::ptrdiff_t>(last));
}

/// Prints new events, each once, until a signal ends the command or its reader is gone.
int follow(Console& console, const PoolView& pool, const EventsOptions& options) {
  KnownByNode known;
  std::map<NodeId, std::string> silent;  ///< nodes that do not answer, with the reason
  for (bool first = true;; first = false) {
    const Answers answers = ask(pool, known, options.pool.timeout);
    std::vector<Row> rows = rows_of(answers, options.kinds);
    if (first) cut_to(rows, options.last);
    for (const Row& row : rows) {
      JsonWriter json;
      if (console.json()) add_json(row, json);
      console.print(console.json() ? json.text() : to_line(row));
      if (!console.flush()) break;  // line by line, so that Ctrl-C cuts none off
    }
    for (const auto& one : answers) {
      const std::string why = one.answer ? "" : one.answer.error().message();
      if (!why.empty() && silent[one.node.node].empty()) {
        console.note(one.node.name + " does not answer: " + why);
      } else if (why.empty() && !silent[one.node.node].empty()) {
        console.note(one.node.name + " answers again");
      }
      silent[one.node.node] = why;
      if (!first && one.answer && one.answer->page.lost > 0) {
        console.note(one.node.name + ": " + std::to_string(one.answer->page.lost) +
                     " events came too fast to be kept; its log has them");
      }
    }
    if (!console.flush()) return kExitDone;  // Program says why, and ends with kExitBadInput
    learn(answers, known);
    std::this_thread::sleep_for(options.interval);
  }
}

int run_events(Console& console, const EventsOptions& options) {
  auto pool = open_pool(options.pool, SteadyClock().now() + options.pool.timeout);
  if (!pool) return complain_about_pool(console, pool.error());
  if (options.follow) return follow(console, *pool, options);
  const Answers answers = ask(*pool, {}, options.pool.timeout);
  std::vector<Row> rows = rows_of(answers, options.kinds);
  cut_to(rows, options.last);
  std::uint64_t lost = 0;
  int exit_code = kExitDone;
  for (const auto& one : answers) {
    if (one.answer) {
      lost += one.answer->page.lost;
    } else {
      exit_code = complain_about_node(console, one.node, one.answer.error());
    }
  }
  console.print(console.json() ? to_json(rows, lost) : to_table(rows, console.format()));
  return exit_code;
}

}  // namespace

void add_events(Program& program, const PoolOptions& defaults) {
  auto [added, options] =
      add_command<EventsOptions>(program, program.root(), "events",
                                 "What happened: sessions, grants, refusals, acts", run_events);
  added.add_flag("--follow", options.follow, "go on with what happens, until Ctrl-C");
  added.add_option("--kind", options.kinds, "show only these: state, session, grant, refusal, act")
      ->delimiter(',')
      ->check(
          CLI::IsMember(std::vector<std::string>(kEventKindNames.begin(), kEventKindNames.end())));
  add_count(added, "--last", options.last, "how many of the past to show", {0, 1'000'000});
  add_time(added, "--interval", options.interval, "with --follow, time between two looks",
           {std::chrono::milliseconds(100), std::chrono::hours(1)});
  add_pool_options(added, options.pool, defaults);
  set_manual(
      added,
      {"Each daemon keeps its last 1024 events of each kind since its start; its log (the journal) "
       "has all of them, but equal refusals once a minute. With --follow -o json each line is an "
       "object.",
       {"hyperoffload events --kind act,refusal", "hyperoffload events --follow -o json"},
       {{kExitDone, "all nodes answered"},
        {kExitNo, "some node did not answer"},
        {kExitPoolFailed, "the pool cannot be reached"}}});
}

}  // namespace ho::cli
