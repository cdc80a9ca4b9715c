#include "tests/integration/daemon/daemon_process.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <fstream>
#include <sstream>
#include <vector>

namespace ho::test {

DaemonProcess::DaemonProcess(const TempFolder& folder, const std::string& tag, const Spec& spec)
    : err_file_(folder.file(tag + ".err")) {
  const std::string config_file = folder.file(tag + ".textproto");
  std::ofstream(config_file) << spec.config;
  std::vector<std::string> words{HO_DAEMON_PROGRAM, "--config", config_file};
  if (spec.only_check) words.emplace_back("--check-config");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_ = ::fork();
  REQUIRE(pid_ >= 0);
  if (pid_ > 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that crashes leaves nothing behind
  const int err = ::open(err_file_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  ::dup2(err, STDERR_FILENO);
  if (spec.network >= 0 && ::setns(spec.network, CLONE_NEWNET) != 0) ::_exit(126);
  if (spec.notify_to) ::setenv("NOTIFY_SOCKET", spec.notify_to->c_str(), 1);
  ::execv(arguments[0], arguments.data());
  ::_exit(127);
}

DaemonProcess::~DaemonProcess() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::kill(pid_, SIGCONT);
  ::waitpid(pid_, nullptr, 0);
  // A test that has just failed may have failed by what the daemon says.
  if (std::uncaught_exceptions() > 0) std::fputs(err().c_str(), stderr);
}

void DaemonProcess::send(int signal) const {
  REQUIRE(pid_ > 0);
  REQUIRE(::kill(pid_, signal) == 0);
  if (signal != SIGSTOP) return;
  // A thread may go on until the one that takes the signal has had its turn on a busy machine.
  siginfo_t info{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED) == 0);
}

Exit DaemonProcess::wait(std::chrono::milliseconds time_max) {
  REQUIRE(pid_ > 0);
  int status = 0;
  const bool ended =
      eventually(time_max, [&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; });
  INFO(err());
  REQUIRE(ended);
  pid_ = -1;
  Exit out;
  if (WIFEXITED(status)) out.code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) out.signal = WTERMSIG(status);
  out.err = err();
  return out;
}

std::string DaemonProcess::err() const {
  std::ifstream in(err_file_);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

std::string small_config(const TempFolder& folder, const std::string& more,
                         std::uint64_t lease_ms) {
  return "node_id: 3\nnode_name: \"n3\"\nddr_bytes: 33554432\nsegment_bytes: 2097152\nlease_ms: " +
         std::to_string(lease_ms) + "\ndrain_ms: 1000\nunix_socket: \"" +
         folder.file("control.sock") + "\"\n" + more;
}

std::string unix_address(const TempFolder& folder) { return "unix:" + folder.file("control.sock"); }

TimePoint soon() { return SteadyClock().now() + std::chrono::seconds(20); }

std::unique_ptr<ControlClient> connect(const std::string& address) {
  std::unique_ptr<ControlClient> client;
  std::string why;
  const bool connected = eventually(std::chrono::seconds(30), [&] {
    ControlClient::Options options;
    options.address = address;
    auto made = ControlClient::connect(std::move(options), soon());
    if (!made) {
      why = made.error().message();
      return false;
    }
    client = std::move(*made);
    return true;
  });
  INFO(why);
  REQUIRE(connected);
  return client;
}

}  // namespace ho::test
