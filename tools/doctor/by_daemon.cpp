#include "tools/doctor/by_daemon.hpp"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>

#include "common/base/clock.hpp"
#include "common/system/unique_fd.hpp"
#include "common/transport/loader/own_files.hpp"

namespace ho::doctor {

namespace {

constexpr Duration kTimeMax = std::chrono::seconds(30);
constexpr std::size_t kWordsMax = 4096;

/// Reads what the process says until it ends, or the time is over.
std::string words_of(int fd) {
  std::string out;
  const TimePoint end = SteadyClock().now() + kTimeMax;
  std::array<char, 512> part{};
  while (out.size() < kWordsMax) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(end - SteadyClock().now()).count();
    pollfd one{fd, POLLIN, 0};
    if (left <= 0 || ::poll(&one, 1, static_cast<int>(left)) == 0) break;
    const ssize_t got = ::read(fd, part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    out.append(part.data(), static_cast<std::size_t>(got));
  }
  return out;
}

Check judge(const std::string& words, int status) {
  Check check{"configuration", State::kOk, "the daemon would start with it", ""};
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return check;
  check.state = State::kFailed;
  check.found = words.substr(0, words.find('\n'));
  if (const auto at = check.found.find("hyperoffloadd: "); at == 0) check.found.erase(0, 15);
  if (check.found.empty()) check.found = "hyperoffloadd --check-config does not end";
  check.fix = "Mend what it names. `hyperoffloadd --config FILE --check-config` names the rest.";
  return check;
}

}  // namespace

std::optional<Check> check_by_daemon(const std::string& config_file) {
  const auto program = transport::find_own_file("hyperoffloadd");
  std::array<int, 2> ends{};
  if (!program || ::pipe2(ends.data(), O_CLOEXEC) != 0) return std::nullopt;
  UniqueFd ours(ends[0]);
  UniqueFd theirs(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, theirs.get(), STDERR_FILENO);
  std::string name = program->string();
  std::string option = "--config";
  std::string file = config_file;
  std::string only = "--check-config";
  std::array<char*, 5> words{name.data(), option.data(), file.data(), only.data(), nullptr};
  pid_t pid = 0;
  const int failed = ::posix_spawn(&pid, name.c_str(), &actions, nullptr, words.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) return std::nullopt;
  theirs.reset();
  const std::string said = words_of(ours.get());
  ::kill(pid, SIGKILL);  // it has ended, or takes too long
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
  return judge(said, status);
}

}  // namespace ho::doctor
