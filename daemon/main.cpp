#include <pthread.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdint>
#include <string>

#include "common/base/clock.hpp"
#include "common/base/json.hpp"
#include "common/base/log.hpp"
#include "common/base/signals.hpp"
#include "common/base/standard_streams.hpp"
#include "common/cli/help.hpp"
#include "common/cli/program.hpp"
#include "daemon/node.hpp"
#include "daemon/protection.hpp"
#include "daemon/targets.hpp"
#include "proto/config.hpp"

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

/// The file's content, where this machine can do what it says. Errors name file and line.
ho::Result<ho::DaemonConfig> checked_config(const std::string& file) {
  auto config = ho::read_daemon_config(file);
  if (!config) return config.error();
  const auto pages = ho::daemon::check_memory(*config);
  if (!pages) return config->at_field("ddr_bytes", pages.error());
  if (const auto shares = ho::daemon::check_numa(*config, *pages); !shares) {
    return config->at_field("numa", shares.error());
  }
  if (const auto tls = ho::daemon::load_tls(*config); !tls) {
    return config->at_field("tls", tls.error());
  }
  if (const auto mistake = ho::daemon::find_rail_mistake(*config)) {
    return mistake->error.at(file + ":" + std::to_string(mistake->line));
  }
  return config;
}

int run(ho::cli::Console& console, const std::string& file, Mode mode) {
  const auto config = checked_config(file);
  if (!config) return console.refuse(config.error());
  if (mode == Mode::kCheckConfig) {
    ho::JsonWriter json;
    json.begin_object().field("config", file).field("ok", true).end();
    console.print(console.json() ? json.text() : file + ": ok");
    return ho::cli::kExitDone;
  }
  ho::set_log_level(config->log_level);
  // A peer that goes away is an error of its connection, not a signal to the process.
  std::signal(SIGPIPE, SIG_IGN);
  allow_descriptors();
  const ho::SteadyClock clock;
  auto node =
      ho::daemon::Node::create(*config, clock, [&file] { return ho::read_daemon_config(file); });
  if (!node) return console.complain(node.error(), ho::cli::kExitNo);
  (*node)->run();
  return ho::cli::kExitDone;
}

}  // namespace

int main(int argc, char** argv) {
  ho::open_standard_streams();
  ho::drop_library_signal_handlers();
  hold_signals();
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
      {"SIGTERM and SIGINT end the daemon in order: it drains first. The second one "
       "hastens the end. SIGHUP applies changes of log_level, drain_ms, flash_unused_s_max, "
       "nodes and tls, and reads the certificates again; other fields need a restart.",
       {"hyperoffloadd --config node.textproto --check-config"},
       {{ho::cli::kExitDone, "ended by a signal, or the configuration is fine"},
        {ho::cli::kExitNo, "could not start, or failed"}}});
  return program.run(argc, argv);
}
