#include "tools/doctor/checks.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "common/base/units.hpp"

namespace ho::doctor {

namespace {

/// Mappings and descriptors that a daemon with many sessions may use beside its segments, and
/// mappings of a segment: its own, and one for each of three drivers. Source: own estimate.
constexpr std::uint64_t kMappingsBeside = 16'384;
constexpr std::uint64_t kDescriptorsBeside = 4'096;
constexpr std::uint64_t kMappingsPerSegment = 4;
constexpr std::uint64_t kHugePageBytes = 2 * kMiB;

Check ok(std::string name, std::string found) {
  return {std::move(name), State::kOk, std::move(found), ""};
}

std::string or_unlimited(std::optional<std::uint64_t> limit) {
  return limit ? std::to_string(*limit) : "unlimited";
}

Check memory(const Machine& machine, const Needs& needs) {
  const std::uint64_t free = machine.memory_available_bytes.value_or(0);
  const std::uint64_t huge = machine.huge_pages_free_bytes.value_or(0);
  const std::string found =
      format_bytes(free) + " available, and " + format_bytes(huge) + " of free huge pages";
  if (needs.ddr_bytes <= std::max(free, huge)) return ok("memory", found);
  return {"memory", State::kWarning, found + "; ddr_bytes is " + format_bytes(needs.ddr_bytes),
          "Grants beyond it fail. Lower ddr_bytes, or end what takes the memory"};
}

Check huge_pages(const Machine& machine, const Needs& needs) {
  const std::uint64_t free = machine.huge_pages_free_bytes.value_or(0);
  // Without a configuration a pool of 1 GiB is the least that is worth the question.
  const bool enough = free >= std::max(needs.ddr_bytes, kGiB);
  const bool transparent =
      machine.shmem_huge_pages == "always" || machine.shmem_huge_pages == "advise" ||
      machine.shmem_huge_pages == "force" || machine.shmem_huge_pages == "within_size";
  const std::string found =
      format_bytes(free) + " reserved and free; transparent ones for shared memory: " +
      (machine.shmem_huge_pages.empty() ? "unknown" : machine.shmem_huge_pages);
  if (enough || transparent) return ok("huge pages", found);
  const std::uint64_t pages =
      std::max<std::uint64_t>(1, (needs.ddr_bytes + kHugePageBytes - 1) / kHugePageBytes);
  const std::string reserve = needs.ddr_bytes == 0
                                  ? "sysctl vm.nr_hugepages=N"
                                  : "sysctl vm.nr_hugepages=" + std::to_string(pages);
  return {"huge pages", State::kWarning, found,
          "Large transfers are slower without. Either " + reserve +
              ", or echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled"};
}

Check swap(const Machine& machine) {
  const std::uint64_t bytes = machine.swap_bytes.value_or(0);
  if (bytes == 0) return ok("swap", "none");
  return {"swap", State::kWarning, format_bytes(bytes),
          "The kernel may move pool memory to it. Use huge pages, or MemorySwapMax=0 in the unit"};
}

Check mappings(const Machine& machine, const Needs& needs) {
  const std::uint64_t least = kMappingsBeside + kMappingsPerSegment * needs.segments;
  const std::uint64_t most = machine.mappings_max.value_or(0);
  const std::string found = std::to_string(most) + " per process (vm.max_map_count)";
  if (most >= least) return ok("memory mappings", found);
  return {"memory mappings", State::kFailed, found,
          "sysctl vm.max_map_count=" + std::to_string(std::max<std::uint64_t>(65'530, least)) +
              ", or larger segments"};
}

Check descriptors(const Machine& machine, const Needs& needs) {
  const std::uint64_t least = kDescriptorsBeside + needs.segments;
  const std::string found = or_unlimited(machine.descriptors_max) + " per process";
  if (!machine.descriptors_max || *machine.descriptors_max >= least) {
    return ok("descriptors", found);
  }
  return {"descriptors", State::kFailed, found,
          "ulimit -Hn " + std::to_string(least) + ", or LimitNOFILE= in the unit (its default is " +
              "262144); each segment takes one"};
}

Check locked_memory(const Machine& machine, const Needs& needs) {
  const bool limited = machine.locked_bytes_max.has_value();
  const std::string found = limited ? format_bytes(*machine.locked_bytes_max) : "unlimited";
  const bool registers = needs.rdma || !machine.rdma_ports.empty();
  if (!registers) return ok("locked memory", found + "; nothing here needs it without RDMA");
  const std::uint64_t least = std::max<std::uint64_t>(needs.ddr_bytes, 1);
  if (!limited || (needs.ddr_bytes > 0 && *machine.locked_bytes_max >= least)) {
    return ok("locked memory", found);
  }
  return {"locked memory", needs.rdma ? State::kFailed : State::kWarning, found,
          "RDMA locks what it registers: ulimit -l unlimited for jobs, LimitMEMLOCK=infinity in "
          "the unit"};
}

Check check_io_uring(const Machine& machine, const Needs& needs) {
  if (machine.io_uring_fault.empty()) return ok("io_uring", "usable");
  return {"io_uring", needs.flash ? State::kFailed : State::kWarning, machine.io_uring_fault,
          "Flash needs it: sysctl kernel.io_uring_disabled=0, and allow io_uring_setup in the "
          "container's seccomp profile"};
}

Check rdma(const Machine& machine, const Needs& needs) {
  std::string ports;
  const auto add = [&ports](const std::string& port, const char* state) {
    ports += (ports.empty() ? "" : ", ") + port + state;
  };
  for (const std::string& port : machine.rdma_ports) add(port, " up");
  for (const std::string& port : machine.rdma_ports_down) add(port, " down");
  if (!machine.rdma_ports.empty()) return ok("RDMA ports", ports);
  if (ports.empty()) ports = "none";
  if (!needs.rdma) return ok("RDMA ports", ports + "; transfers between nodes go over TCP");
  return {"RDMA ports", State::kFailed, ports,
          "The configuration has a driver over RDMA. Look at `ip link` and `rdma link`, load the "
          "device's driver, or remove the block"};
}

Check libraries(const Machine& machine, const Needs& needs) {
  const auto shown = [](const std::string& version) { return version.empty() ? "none" : version; };
  const std::string found =
      "UCX " + shown(machine.ucx_version) + ", libfabric " + shown(machine.libfabric_version);
  const bool missing = machine.ucx_version.empty() && machine.libfabric_version.empty();
  if (!missing || (!needs.rdma && machine.rdma_ports.empty())) return ok("libraries", found);
  return {"libraries", needs.rdma ? State::kFailed : State::kWarning, found,
          "RDMA ports are used through one of them: install the packages libucx0 and libfabric1"};
}

Check clock(const Machine& machine) {
  // Reading any other source is a system call, which every transfer makes several times.
  static constexpr std::array kFast = {"tsc", "kvm-clock", "arch_sys_counter",
                                       "hyperv_clocksource_tsc_page"};
  const bool fast = std::find(kFast.begin(), kFast.end(), machine.clock_source) != kFast.end();
  const std::string found = (machine.clock_source.empty() ? "unknown" : machine.clock_source) +
                            (machine.clock_synchronised ? ", synchronised" : ", not synchronised");
  if (!fast) {
    return {"clock", State::kWarning, found,
            "Reading this clock is slow. Boot with clocksource=tsc where the processor allows it"};
  }
  if (!machine.clock_synchronised) {
    return {"clock", State::kWarning, found,
            "Times in the logs of different nodes will not agree. Run systemd-timesyncd or chrony"};
  }
  return ok("clock", found);
}

}  // namespace

std::string_view state_name(State state) {
  switch (state) {
    case State::kOk: return "ok";
    case State::kWarning: return "warning";
    case State::kFailed: return "failed";
  }
  return "?";
}

std::vector<Check> check_machine(const Machine& machine, const Needs& needs) {
  return {memory(machine, needs),
          huge_pages(machine, needs),
          swap(machine),
          mappings(machine, needs),
          descriptors(machine, needs),
          locked_memory(machine, needs),
          check_io_uring(machine, needs),
          rdma(machine, needs),
          libraries(machine, needs),
          clock(machine)};
}

}  // namespace ho::doctor
