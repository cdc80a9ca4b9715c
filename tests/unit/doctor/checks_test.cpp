#include "tools/doctor/checks.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "common/base/units.hpp"
#include "tests/support/temp_folder.hpp"
#include "tools/doctor/machine.hpp"

using namespace ho;
using namespace ho::doctor;

namespace {

/// A machine on which every check is ok.
Machine good() {
  Machine machine;
  machine.memory_available_bytes = 64 * kGiB;
  machine.swap_bytes = 0;
  machine.huge_pages_free_bytes = 32 * kGiB;
  machine.shmem_huge_pages = "advise";
  machine.mappings_max = 65'530;
  machine.clock_source = "tsc";
  machine.clock_synchronised = true;
  machine.rdma_ports = {"mlx5_0:1"};
  machine.ucx_version = "1.13.1";
  machine.libfabric_version = "1.17";
  return machine;
}

Needs much() { return {16 * kGiB, 64, true, true}; }

Check find(const std::vector<Check>& checks, const std::string& name) {
  const auto at = std::find_if(checks.begin(), checks.end(),
                               [&name](const Check& check) { return check.name == name; });
  REQUIRE(at != checks.end());
  return *at;
}

State state_of(const std::string& name, const Machine& machine, const Needs& needs) {
  return find(check_machine(machine, needs), name).state;
}

}  // namespace

TEST_CASE("doctor: a good machine has nothing to mend, and only findings have a remedy") {
  for (const Needs& needs : {Needs{}, much()}) {
    for (const Check& check : check_machine(good(), needs)) {
      INFO(check.name << ": " << check.found);
      CHECK(check.state == State::kOk);
      CHECK(check.fix.empty());
    }
  }
  const std::vector<Check> unknown = check_machine({}, much());
  REQUIRE(unknown.size() == check_machine(good(), {}).size());
  for (const Check& check : unknown) CHECK(check.fix.empty() == (check.state == State::kOk));
}

TEST_CASE("doctor: what a configuration asks for fails, what it could use is a warning") {
  const struct {
    const char* check;
    void (*spoil)(Machine&);
    State alone;   ///< without a configuration
    State needed;  ///< with one that asks for much
  } rows[] = {
      {"memory", [](Machine& m) { m.memory_available_bytes = kGiB, m.huge_pages_free_bytes = 0; },
       State::kOk, State::kWarning},
      {"huge pages", [](Machine& m) { m.huge_pages_free_bytes = 0, m.shmem_huge_pages = "never"; },
       State::kWarning, State::kWarning},
      {"swap", [](Machine& m) { m.swap_bytes = kGiB; }, State::kWarning, State::kWarning},
      {"memory mappings", [](Machine& m) { m.mappings_max = 16'384; }, State::kOk, State::kFailed},
      {"descriptors", [](Machine& m) { m.descriptors_max = 4'096; }, State::kOk, State::kFailed},
      {"locked memory", [](Machine& m) { m.locked_bytes_max = 8 * kMiB; }, State::kWarning,
       State::kFailed},
      {"io_uring", [](Machine& m) { m.io_uring_fault = "Operation not permitted"; },
       State::kWarning, State::kFailed},
      {"RDMA ports", [](Machine& m) { m.rdma_ports.clear(); }, State::kOk, State::kFailed},
      {"libraries", [](Machine& m) { m.ucx_version = m.libfabric_version = ""; }, State::kWarning,
       State::kFailed},
      {"clock", [](Machine& m) { m.clock_source = "hpet"; }, State::kWarning, State::kWarning},
      {"clock", [](Machine& m) { m.clock_synchronised = false; }, State::kWarning, State::kWarning},
  };
  for (const auto& row : rows) {
    INFO(row.check);
    Machine machine = good();
    row.spoil(machine);
    CHECK(state_of(row.check, machine, {}) == row.alone);
    CHECK(state_of(row.check, machine, much()) == row.needed);
  }
}

TEST_CASE("doctor: the remedy has the numbers that the configuration needs") {
  Machine machine = good();
  machine.huge_pages_free_bytes = 0;
  machine.shmem_huge_pages = "never";
  machine.mappings_max = 1'000;
  const auto checks = check_machine(machine, {16 * kGiB, 65'536, false, false});
  CHECK(find(checks, "huge pages").fix.find("vm.nr_hugepages=8192,") != std::string::npos);
  CHECK(find(checks, "memory mappings").fix.find("vm.max_map_count=278528,") != std::string::npos);
}

TEST_CASE("doctor: the facts come from the system's files") {
  const test::TempFolder folder;
  const auto put = [&folder](const std::string& name, const std::string& text) {
    const auto path = std::filesystem::path(folder.file(name));
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  };
  put("proc/meminfo", "MemTotal: 4096 kB\nMemAvailable:    2048 kB\nSwapTotal: 1024 kB\n");
  put("proc/sys/vm/max_map_count", "65530\n");
  put("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "3\n");
  put("sys/kernel/mm/transparent_hugepage/shmem_enabled",
      "always within_size [advise] never deny force\n");
  put("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n");
  put("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
  put("sys/class/infiniband/mlx5_0/ports/2/state", "1: DOWN\n");
  put("sys/class/infiniband/mlx5_0/device/vendor", "0x15b3\n");
  put("sys/class/infiniband/rxe0/ports/1/state", "4: ACTIVE\n");
  const Machine machine = read_machine(folder.file("."));
  CHECK(machine.memory_available_bytes == 2 * kMiB);
  CHECK(machine.swap_bytes == kMiB);
  CHECK(machine.mappings_max == 65'530);
  CHECK(machine.huge_pages_free_bytes == 6 * kMiB);
  CHECK(machine.shmem_huge_pages == "advise");
  CHECK(machine.clock_source == "tsc");
  CHECK(machine.rdma_ports == std::vector<std::string>{"mlx5_0:1", "rxe0:1 (software)"});
  CHECK(find(check_machine(machine, {}), "RDMA ports").found ==
        "mlx5_0:1 up, rxe0:1 (software) up, mlx5_0:2 down");

  const Machine empty = read_machine(folder.file("none"));
  CHECK_FALSE(empty.memory_available_bytes);
  CHECK_FALSE(empty.mappings_max);
  CHECK(empty.shmem_huge_pages.empty());
  CHECK(empty.rdma_ports.empty());
}
