#include <google/protobuf/stubs/logging.h>
#include <pthread.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>
#include <utility>

#include "common/base/clock.hpp"
#include "common/base/log.hpp"
#include "common/cli/help.hpp"
#include "common/cli/program.hpp"
#include "common/system/standard_streams.hpp"
#include "common/text/json.hpp"
#include "daemon/control/access.hpp"
#include "daemon/control/service.hpp"
#include "daemon/journal.hpp"
#include "daemon/membership/node_number.hpp"
#include "daemon/node.hpp"
#include "daemon/start_check.hpp"
#include "proto/config/config.hpp"

namespace {

enum class Mode : std::uint8_t { kServe, kCheckConfig };

/// The signals wait until Node::run() is ready for them: SIGTERM during the start ends the daemon
/// in order too. Threads made from here on inherit the mask.
void hold_signals() {
  const sigset_t held = ho::daemon::node_signals();
  pthread_sigmask(SIG_BLOCK, &held, nullptr);
}

/// As many descriptors as the system allows without asking: every connection takes one.
void allow_descriptors() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
}

/// Finds systemd's descriptor store, and takes what the last process left there.
ho::daemon::Node::Succession succeed(const ho::DaemonConfig& config) {
  ho::daemon::Node::Succession out;
  // systemd sets FDSTORE from version 254 on; the unit sets it for older ones.
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread runs yet
  const char* const max = std::getenv("FDSTORE");
  std::size_t descriptors_max = max == nullptr ? 0 : std::strtoull(max, nullptr, 10);
  // NOLINTNEXTLINE(concurrency-mt-unsafe): the same
  if (std::getenv("NOTIFY_SOCKET") == nullptr) {
    out.off = "it was not started by systemd (NOTIFY_SOCKET is not set)";
  } else if (descriptors_max == 0) {
    out.off = "its unit has no FileDescriptorStoreMax (FDSTORE is not set)";
  }
  if (!out.off.empty()) descriptors_max = 0;
  out.store = std::make_unique<ho::daemon::FdStore>(descriptors_max);
  auto stored = ho::daemon::take_stored_fds();
  out.inherited = ho::daemon::inherit(std::move(stored), *out.store,
                                      {config.node, config.segment_bytes, config.unix_socket});
  return out;
}

/// What the node needs of etcd before it starts: a name of its machine, and its number.
ho::Result<void> settle_number(ho::DaemonConfig& config) {
  if (!config.etcd) return {};
  if (const auto machine = ho::daemon::machine_name(*config.etcd); !machine) {
    return config.at_field("etcd", machine.error());
  }
  if (config.node_given) return {};
  const auto node = ho::daemon::find_node_number(*config.etcd);
  if (!node) return config.at_field("etcd", node.error());
  config.node = *node;
  return {};
}

/// For a start that failed. systemd starts the daemon again 100 ms after its end, because jobs wait
/// for it (kResumeTime). Where none waits, the end comes later: starts that fail must not fill the
/// journal. A signal hastens it. @param alive  when the last process was.
void wait_before_end(const ho::Clock& clock, ho::TimePoint alive) {
  constexpr timespec kWait{2, 0};
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread runs
  if (std::getenv("NOTIFY_SOCKET") == nullptr) return;
  if (alive != ho::TimePoint{} && clock.now() < alive + ho::daemon::kResumeTime) return;
  const sigset_t signals = ho::daemon::node_signals();
  static_cast<void>(::sigtimedwait(&signals, nullptr, &kWait));
}

/// A start that failed by what may pass, as a certificate that is not valid yet or an address that
/// is not there yet: with 1 systemd goes on starting the daemon, and keeps what the last one left.
int could_not_start(ho::cli::Console& console, const ho::Error& error, const ho::Clock& clock,
                    ho::TimePoint alive) {
  const int exit = console.complain(error, ho::cli::kExitNo);
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread runs
  if (std::getenv("NOTIFY_SOCKET") != nullptr) {
    console.note("hyperoffloadd: could not start; systemd tries again until it can");
  }
  wait_before_end(clock, alive);
  return exit;
}

int run(ho::cli::Console& console, const std::string& file, Mode mode) {
  if (mode != Mode::kCheckConfig) hold_signals();  // a check may be ended at any time
  auto config = ho::read_daemon_config(file);
  if (!config) return console.refuse(config.error());
  if (mode == Mode::kCheckConfig) {
    if (const auto ok = ho::daemon::check_machine(*config, {}); !ok)
      return console.refuse(ok.error());
    // A daemon that starts goes on without them: it may be one that takes over, and a directory
    // service that is down must not cost the jobs their memory.
    if (const auto users = ho::daemon::Access::create(*config, nullptr); !users) {
      return console.refuse(users.error());
    }
    ho::daemon::StartNotes notes;
    const auto ok = ho::daemon::check_start(*config, notes);
    if (!ok) return console.refuse(ok.error());
    ho::JsonWriter json;
    json.begin_object().field("config", file).field("ok", true);
    std::string words = file + ": ok";
    if (!notes.skipped.empty()) {
      json.field("not_checked", notes.skipped);
      words += "\nnot checked: " + notes.skipped;
    }
    if (!notes.warning.empty()) {
      json.field("warning", notes.warning);
      words += "\nwarning: " + notes.warning;
    }
    json.end();
    console.print(console.json() ? json.text() : words);
    return ho::cli::kExitDone;
  }
  ho::set_log_level(config->log_level);
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread runs yet
  if (ho::daemon::stderr_is_journal(std::getenv("JOURNAL_STREAM"))) {
    ho::daemon::log_to_journal(config->node_name);
  }
  // A peer that goes away is an error of its connection, not a signal to the process.
  std::signal(SIGPIPE, SIG_IGN);
  allow_descriptors();
  const ho::SteadyClock clock;
  if (const auto settled = settle_number(*config); !settled) {
    return could_not_start(console, settled.error(), clock, {});
  }
  auto succession = succeed(*config);
  const auto held = ho::daemon::held_pages(succession.inherited);
  const ho::TimePoint alive = succession.inherited.kept.alive;
  if (const auto ok = ho::daemon::check_machine(*config, held); !ok) {
    return could_not_start(console, ok.error(), clock, alive);
  }
  auto node = ho::daemon::Node::create(
      *config, clock, [&file] { return ho::read_daemon_config(file); }, std::move(succession));
  if (!node) return could_not_start(console, node.error(), clock, alive);
  const auto end = (*node)->run();
  node->reset();
  switch (end) {
    case ho::daemon::Node::End::kStopped: return ho::cli::kExitDone;
    case ho::daemon::Node::End::kInterrupted: return ho::cli::kExitInterrupted;
    case ho::daemon::Node::End::kUpgrade: return ho::cli::kExitRestart;
    case ho::daemon::Node::End::kFailed: break;
  }
  wait_before_end(clock, alive);
  return ho::cli::kExitNo;
}

}  // namespace

int main(int argc, char** argv) {
  ho::open_standard_streams();
  // libprotobuf logs a line for each string that is not UTF-8, as often as a client likes. This
  // silences all its messages; our parsers report their own errors.
  google::protobuf::SetLogHandler(nullptr);
  ho::cli::Program program("hyperoffloadd", "Gives this node's memory and flash to the pool.");
  std::string file;
  bool only_check = false;
  program.root()
      .add_option("--config", file, "the configuration, protobuf text")
      ->type_name("FILE")
      ->required();
  program.root().add_flag("--check-config", only_check, "check the configuration and exit");
  program.set_run(program.root(), [&](ho::cli::Console& console) {
    return run(console, file, only_check ? Mode::kCheckConfig : Mode::kServe);
  });
  ho::cli::set_manual(
      program.root(),
      {"SIGTERM and SIGINT end the daemon in order: it gives nothing out, and jobs have drain_ms "
       "to move to other nodes or to end. The second one hastens the end. SIGHUP applies changes "
       "of log_level, drain_ms, flash_unused_s_max, nodes, access, quotas and tls, and reads the "
       "certificates again; other fields need a restart. Check a configuration as the daemon's "
       "user: root can read files that the daemon cannot.",
       {"hyperoffloadd --config node.textproto --check-config"},
       {{ho::cli::kExitDone, "ended by SIGTERM, or the configuration is fine"},
        {ho::cli::kExitNo, "could not start, or failed"},
        {ho::cli::kExitRestart, "ended for an upgrade: the next process takes over"}}});
  return program.run(argc, argv);
}
