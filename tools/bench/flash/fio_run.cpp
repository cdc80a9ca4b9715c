#include "tools/bench/flash/fio_run.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <vector>

#include "common/system/unique_fd.hpp"

namespace ho::bench {

namespace {

constexpr int kNoProgram = 127;

std::vector<std::string> arguments_for(const FioShape& shape, Duration time) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
  std::vector<std::string> out{"fio",
                               "--name=limit",
                               "--ioengine=io_uring",
                               "--direct=1",
                               "--registerfiles=1",
                               "--fixedbufs=1",
                               "--norandommap=1",
                               "--randrepeat=0",
                               "--time_based=1",
                               "--output-format=json",
                               "--filename=" + shape.path,
                               "--rw=" + shape.rw,
                               "--bs=" + std::to_string(shape.size_bytes),
                               "--iodepth=" + std::to_string(shape.inflight),
                               "--offset=" + std::to_string(shape.offset_bytes),
                               "--size=" + std::to_string(shape.area_bytes),
                               "--runtime=" + std::to_string(ms) + "ms"};
  if (shape.fdatasync_every > 0) {
    out.push_back("--fdatasync=" + std::to_string(shape.fdatasync_every));
  }
  return out;
}

[[noreturn]] void become_fio(std::vector<std::string>& arguments, int output) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(output, STDERR_FILENO);
  // Asks for huge pages, which our buffers have too (glibc 2.35 and later).
  ::setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1", 1);
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  ::execvp("fio", pointers.data());
  ::_exit(kNoProgram);
}

}  // namespace

Result<double> fio_number(const std::string& json, const std::string& section,
                          const std::string& key) {
  std::size_t at = 0;
  if (!section.empty()) at = json.find("\"" + section + "\" : {");
  if (at != std::string::npos) at = json.find("\"" + key + "\" :", at);
  if (at == std::string::npos) return Error(Errc::kCorrupt, "fio's answer lacks " + key);
  return std::strtod(json.c_str() + at + key.size() + 4, nullptr);
}

Result<FioRun> run_fio(const FioShape& shape, Duration time) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return errno_error(errno, "pipe");
  UniqueFd in(ends[0]);
  UniqueFd out(ends[1]);
  std::vector<std::string> arguments = arguments_for(shape, time);
  const pid_t child = ::fork();
  if (child < 0) return errno_error(errno, "fork");
  if (child == 0) become_fio(arguments, out.get());
  out.reset();
  std::string text;
  std::array<char, 65536> piece{};
  for (;;) {
    const ssize_t count = ::read(in.get(), piece.data(), piece.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    text.append(piece.data(), static_cast<std::size_t>(count));
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNoProgram) {
    return Error(Errc::kNotFound, "fio is not installed (Debian package fio)");
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    return Error(Errc::kIo, "fio failed: " + text.substr(0, 500));
  }
  const std::string section = shape.rw == "randread" ? "read" : "write";
  const auto speed = fio_number(text, section, "bw_bytes");
  const auto bytes = fio_number(text, section, "io_bytes");
  const auto runtime_ms = fio_number(text, "", "job_runtime");
  const auto user = fio_number(text, "", "usr_cpu");
  const auto system = fio_number(text, "", "sys_cpu");
  for (const auto* number : {&speed, &bytes, &runtime_ms, &user, &system}) {
    if (!*number) return number->error();
  }
  return FioRun{*speed, (*user + *system) / 100 * *runtime_ms / 1000, *bytes};
}

}  // namespace ho::bench
