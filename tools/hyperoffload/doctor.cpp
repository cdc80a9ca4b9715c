#include <algorithm>
#include <string>
#include <vector>

#include "common/cli/layout.hpp"
#include "common/text/json.hpp"
#include "proto/config/config.hpp"
#include "tools/doctor/by_daemon.hpp"
#include "tools/doctor/certificates.hpp"
#include "tools/doctor/checks.hpp"
#include "tools/doctor/listening.hpp"
#include "tools/doctor/machine.hpp"
#include "tools/hyperoffload/command.hpp"

namespace ho::cli {

namespace {

using doctor::Check;
using doctor::State;

std::string to_json(const std::vector<Check>& checks, bool healthy) {
  JsonWriter json;
  json.begin_object().field("healthy", healthy).key("checks").begin_array();
  for (const Check& check : checks) {
    json.begin_object()
        .field("name", check.name)
        .field("state", doctor::state_name(check.state))
        .field("found", check.found)
        .field("fix", check.fix)
        .end();
  }
  json.end().end();
  return std::move(json).text();
}

std::string to_text(const std::vector<Check>& checks, Format format) {
  Facts facts;
  for (const Check& check : checks) {
    facts.add(std::string(doctor::state_name(check.state)), check.name + ": " + check.found);
    if (!check.fix.empty()) facts.add("", "-> " + check.fix);
  }
  return facts.text(format);
}

int run_doctor(Console& console, const std::string& config_file) {
  doctor::Needs needs;
  std::vector<Check> listening;
  if (!config_file.empty()) {
    const auto config = read_daemon_config(config_file);
    if (!config) return console.refuse(config.error());
    needs = doctor::needs_of(*config);
    listening = doctor::check_listening(*config);
    if (auto whole = doctor::check_by_daemon(config_file)) listening.push_back(std::move(*whole));
    if (auto tls = doctor::check_certificates(*config)) listening.push_back(std::move(*tls));
    if (auto etcd = doctor::check_etcd_files(*config)) listening.push_back(std::move(*etcd));
  }
  std::vector<Check> checks = doctor::check_machine(doctor::read_machine(), needs);
  checks.insert(checks.end(), listening.begin(), listening.end());
  const auto failed = std::count_if(checks.begin(), checks.end(), [](const Check& check) {
    return check.state == State::kFailed;
  });
  console.print(console.json() ? to_json(checks, failed == 0) : to_text(checks, console.format()));
  if (failed == 0) return kExitDone;
  return console.answer_no(std::to_string(failed) + " of " + std::to_string(checks.size()) +
                           " checks failed");
}

}  // namespace

void add_doctor(Program& program) {
  auto [command, config] =
      add_command<std::string>(program, program.root(), "doctor",
                               "Check this machine for a daemon and for jobs", run_doctor);
  command.add_option("--config", config, "also check what this configuration of a daemon asks for")
      ->type_name("FILE");
  set_manual(
      command,
      {"Looks at memory, huge pages, limits, io_uring, RDMA, libraries and the clock, and says "
       "how to mend what it finds. Changes nothing. Limits are those of this shell; a "
       "service has those of its unit.",
       {"hyperoffload doctor",
        "hyperoffload doctor --config /etc/hyperoffload/hyperoffloadd.textproto"},
       {{kExitDone, "everything works; warnings say what could be better"},
        {kExitNo, "at least one check failed"}}});
}

}  // namespace ho::cli
