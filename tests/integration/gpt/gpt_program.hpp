#pragma once

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/client/two_nodes.hpp"
#include "tests/integration/gpt/json.hpp"

extern char** environ;

namespace ho::test {

inline std::string read_text(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// A running program with its output in files. The destructor kills and reaps it.
class Program {
 public:
  Program(const char* path, std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), path);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC;
    posix_spawn_file_actions_addopen(&actions, 1, folder_.file("out").c_str(), kFlags, 0600);
    posix_spawn_file_actions_addopen(&actions, 2, folder_.file("err").c_str(), kFlags, 0600);
    const int failed = posix_spawn(&pid_, path, &actions, nullptr, argv.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    REQUIRE(failed == 0);
  }
  ~Program() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  void send(int signal) const { ::kill(pid_, signal); }
  [[nodiscard]] std::string out() const { return read_text(folder_.file("out")); }
  [[nodiscard]] std::string err() const { return read_text(folder_.file("err")); }

  /// @return its exit status, or -1 if a signal ended it. Fails the test if it does not end.
  int wait(std::chrono::milliseconds time_max = std::chrono::seconds(240)) {
    int status = 0;
    const bool ended =
        eventually(time_max, [&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; });
    INFO(err());
    REQUIRE(ended);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  TempFolder folder_;
  pid_t pid_ = -1;
};

class Gpt : public Program {
 public:
  explicit Gpt(std::vector<std::string> arguments)
      : Program(HO_GPT_PROGRAM, std::move(arguments)) {}
};

/// Runs the same job under several policies.
class Compare : public Program {
 public:
  explicit Compare(std::vector<std::string> arguments)
      : Program(HO_COMPARE_PROGRAM, std::move(arguments)) {}
};

inline double number(const Json& object, const std::string& field) {
  return object.at(field).number;
}

inline std::vector<std::string> with_tiny_model(std::vector<std::string> arguments) {
  for (const char* const word :
       {"--layers", "2", "--dim", "64", "--heads", "2", "--seq", "32", "--batch", "2"}) {
    arguments.emplace_back(word);
  }
  return arguments;
}

}  // namespace ho::test
