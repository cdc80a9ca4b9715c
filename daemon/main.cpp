#include <pthread.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdint>
#include <iostream>

#include "common/base/clock.hpp"
#include "common/base/log.hpp"
#include "common/base/signals.hpp"
#include "daemon/node.hpp"
#include "daemon/targets.hpp"
#include "proto/config.hpp"

namespace {

constexpr int kExitFailed = 1;
constexpr int kExitBadConfig = 2;

int refuse(const ho::Error& error, int code) {
  std::cerr << "hyperoffloadd: " << error.context() << '\n';
  return code;
}

enum class Mode : std::uint8_t { kServe, kCheckConfig };

/// SIGTERM and SIGINT wait until Node::run() is ready for them: a daemon that is told to end while
/// it starts ends in order too. Threads made from here on inherit the mask.
void hold_end_signals() {
  sigset_t held{};
  sigemptyset(&held);
  sigaddset(&held, SIGTERM);
  sigaddset(&held, SIGINT);
  pthread_sigmask(SIG_BLOCK, &held, nullptr);
}

/// As many descriptors as the system allows without asking: a session over `ofi` takes some ten.
void allow_descriptors() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
}

int run(const std::string& file, Mode mode) {
  const auto config = ho::read_daemon_config(file);
  if (!config) return refuse(config.error(), kExitBadConfig);
  ho::set_log_level(config->log_level);
  const auto pages = ho::daemon::check_memory(*config);
  if (!pages) {
    const std::string line = std::to_string(config->ddr_bytes_line);
    return refuse(pages.error().at(file + ":" + line), kExitBadConfig);
  }
  if (const auto shares = ho::daemon::check_numa(*config, *pages); !shares) {
    const std::string line = std::to_string(config->numa.line);
    return refuse(shares.error().at(file + ":" + line), kExitBadConfig);
  }
  if (const auto mistake = ho::daemon::find_ofi_mistake(*config)) {
    const std::string line = std::to_string(mistake->line);
    return refuse(mistake->error.at(file + ":" + line), kExitBadConfig);
  }
  if (mode == Mode::kCheckConfig) {
    std::cout << file << ": ok\n";
    return 0;
  }
  // A peer that goes away is an error of its connection, not a signal to the process.
  std::signal(SIGPIPE, SIG_IGN);
  allow_descriptors();
  const ho::SteadyClock clock;
  auto node = ho::daemon::Node::create(*config, clock);
  if (!node) return refuse(node.error(), kExitFailed);
  (*node)->run();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  ho::drop_library_signal_handlers();
  hold_end_signals();
  CLI::App app{"HyperOffload daemon: gives this node's memory to the pool."};
  app.name("hyperoffloadd");
  app.set_version_flag("--version", "hyperoffloadd " HO_VERSION);
  app.footer(
      "Exit codes: 0 ended by SIGTERM or SIGINT, or the config is fine; 1 could not start or "
      "failed; 2 bad usage or config.");
  std::string file;
  bool only_check = false;
  app.add_option("--config", file, "configuration, protobuf text")->required();
  app.add_flag("--check-config", only_check, "check the configuration and exit");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitBadConfig;
  }
  try {
    return run(file, only_check ? Mode::kCheckConfig : Mode::kServe);
  } catch (const std::exception& error) {
    std::cerr << "hyperoffloadd: " << error.what() << '\n';
    return kExitFailed;
  }
}
