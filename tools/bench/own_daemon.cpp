#include "tools/bench/own_daemon.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <fstream>
#include <iterator>
#include <thread>
#include <utility>

#include "common/transport/loader/own_files.hpp"
#include "proto/control/control_client.hpp"

namespace ho::bench {
namespace {

namespace fs = std::filesystem;

constexpr Duration kStartTimeMax = std::chrono::seconds(20);

std::string whole_file(const fs::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// The lines of the configuration that serve a driver. Only this machine reaches the daemon.
std::string serving(const std::string& driver) {
  if (driver.empty()) return "";
  if (driver == "tcp") return "tcp { }\n";
  return driver + (driver == "ofi" ? " { allow_emulation: true }\n" : " { }\n") +
         "insecure: true\n";
}

}  // namespace

Result<std::unique_ptr<OwnDaemon>> OwnDaemon::start(const Options& options) {
  const auto program = transport::find_own_file("hyperoffloadd");
  if (!program) return program.error();
  std::string pattern = (fs::temp_directory_path() / "ho-bench-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) return errno_error(errno, pattern);
  std::unique_ptr<OwnDaemon> made(new OwnDaemon(pattern));
  const std::string config = made->config().string();
  const std::string err = made->errors().string();
  // This lease is longer than any measurement, because nothing here renews it.
  std::ofstream(config) << "node_name: \"bench\"\nddr_bytes: " << options.ddr_bytes
                        << "\nsegment_bytes: " << options.segment_bytes
                        << "\nlease_ms: 3600000\ndrain_ms: 0\nlog_level: \"error\"\nunix_socket: \""
                        << made->socket() << "\"\n"
                        << serving(options.network)
                        << (options.blocks_bytes == 0
                                ? ""
                                : "blocks { ddr_bytes: " + std::to_string(options.blocks_bytes) +
                                      " }\n")
                        << (options.flash_path.empty()
                                ? ""
                                : "flash { path: \"" + options.flash_path.string() + "\" }\n");
  made->child_ = ::fork();
  if (made->child_ < 0) return errno_error(errno, "fork");
  if (made->child_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int out = ::open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (out >= 0) ::dup2(out, STDERR_FILENO);
    ::execl(program->c_str(), program->c_str(), "--config", config.c_str(), nullptr);
    ::_exit(127);
  }
  if (auto up = made->wait_until_it_answers(); !up) return up.error();
  return made;
}

Result<void> OwnDaemon::wait_until_it_answers() {
  const SteadyClock clock;
  const TimePoint end = clock.now() + kStartTimeMax;
  while (clock.now() < end) {
    ControlClient::Options options;
    options.address = address();
    if (ControlClient::connect(std::move(options), end)) return {};
    if (::waitpid(child_, nullptr, WNOHANG) == child_) {
      child_ = -1;
      return Error(Errc::kUnavailable, "the daemon did not start: " + whole_file(errors()));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return Error(Errc::kDeadline, "the daemon did not come up");
}

OwnDaemon::~OwnDaemon() {
  if (child_ > 0) {
    ::kill(child_, SIGTERM);
    while (::waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
}

}  // namespace ho::bench
