// How the ucx driver's module is found and opened, with and without a device.
#include "common/transport/ucx/loader/ucx_module.hpp"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>

#include "common/transport/loader/own_files.hpp"
#include "common/transport/ucx/loader/rdma_devices.hpp"

namespace ho::transport {
namespace {

std::string loaded() {
  std::ifstream in("/proc/self/maps");
  return {std::istreambuf_iterator<char>(in), {}};
}

/// The reason why a file is not taken.
std::string refusal(const std::string& file) {
  const auto module = load_ucx_module(file);
  if (module) return "opened";
  CHECK(module.error().code() == Errc::kUnsupported);
  CHECK(module.error().context().find(file) != std::string::npos);
  return module.error().context();
}

TEST_CASE("ucx module: a missing file, and one that is not a library, are named with the reason") {
  CHECK(refusal("/nonexistent/driver.so").find("No such file") != std::string::npos);
  CHECK(refusal("/etc/passwd").find("invalid ELF header") != std::string::npos);
  CHECK(refusal("driver.so").find("not an absolute path") != std::string::npos);
}

TEST_CASE(
    "ucx module: a library that is something else, or of another version or build, is refused") {
  CHECK(refusal(HO_MODULE_NONE).find("not a module") != std::string::npos);
  CHECK(
      refusal(HO_MODULE_OLD).find("speaks version 0, needed is " + std::to_string(kUcxModuleAbi)) !=
      std::string::npos);
  CHECK(refusal(HO_MODULE_FOREIGN).find("0.0.0, another compiler") != std::string::npos);
}

TEST_CASE("ucx module: without a device both sides say so, and nothing is opened") {
  if (check_rdma_device()) return;
  const SteadyClock clock;
  const auto initiator = make_ucx_transport({}, clock);
  REQUIRE_FALSE(initiator.ok());
  CHECK(initiator.error().code() == Errc::kUnsupported);
  CHECK(initiator.error().context().find("RDMA device") != std::string::npos);
  const auto target = make_ucx_target({});
  REQUIRE_FALSE(target.ok());
  CHECK(target.error().code() == Errc::kUnsupported);
  CHECK(loaded().find("libucs") == std::string::npos);
}

TEST_CASE("ucx module: what belongs to a program is found beside it, and nowhere else") {
  const auto module = find_own_file(kUcxModuleFile);
  REQUIRE(module.ok());
  CHECK(module->is_absolute());
  const auto absent = find_own_file("nonesuch.so");
  REQUIRE_FALSE(absent.ok());
  CHECK(absent.error().code() == Errc::kNotFound);
  CHECK(absent.error().context().find(module->parent_path().string()) != std::string::npos);
}

/// How the real module opens in a process of its own, since it stays there: the number of the step
/// that went wrong, 0 for none.
int open_for_real() {
  ::signal(SIGHUP, SIG_IGN);
  struct sigaction before {};
  ::sigaction(SIGSEGV, nullptr, &before);
  const auto module = load_ucx_module("");
  if (!module) return 1;
  if (loaded().find("libucs") == std::string::npos) return 2;
  struct sigaction now {};
  ::sigaction(SIGHUP, nullptr, &now);
  if (now.sa_handler != SIG_IGN) return 3;
  ::sigaction(SIGSEGV, nullptr, &now);
  if (now.sa_handler != before.sa_handler) return 4;
  // A name that no UCX has: refused by the driver itself, through the module's own function.
  UcxOptions options;
  options.devices.transports = "tcp";
  const auto made = (*module)->make_transport(options, SteadyClock());
  if (made || made.error().code() != Errc::kInvalidArgument) return 5;
  const auto again = load_ucx_module("");
  return again && *again == *module ? 0 : 6;
}

TEST_CASE("ucx module: the one of this build opens, and leaves the program's signals alone") {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) ::_exit(open_for_real());
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace ho::transport
