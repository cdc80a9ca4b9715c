#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/result.hpp"

namespace ho::doctor {

/// What the system says about itself, as far as a daemon or a job depends on it. Absent: the system
/// does not say.
struct Machine {
  std::optional<std::uint64_t> memory_available_bytes;
  std::optional<std::uint64_t> swap_bytes;
  std::optional<std::uint64_t> huge_pages_free_bytes;  ///< pages of 2 MiB
  std::string shmem_huge_pages;               ///< the chosen word of shmem_enabled, such as "never"
  std::optional<std::uint64_t> mappings_max;  ///< vm.max_map_count, per process
  std::optional<std::uint64_t> descriptors_max;   ///< absent: no limit
  std::optional<std::uint64_t> locked_bytes_max;  ///< absent: no limit
  std::string clock_source;
  bool clock_synchronised = false;
  std::string io_uring_fault;                ///< why a ring cannot be made; empty: it can
  std::vector<std::string> rdma_ports;       ///< those that are up, as "mlx5_0:1"
  std::vector<std::string> rdma_ports_down;  ///< the others
  std::string ucx_version;                   ///< empty: not installed
  std::string libfabric_version;             ///< likewise
};

/// Reads the files below `root`/proc and `root`/sys, and asks the kernel for the rest. Makes and
/// closes one io_uring; loads UCX and libfabric for their versions, which stay in the process.
/// @param root  a prefix, for tests.
[[nodiscard]] Machine read_machine(const std::string& root = "");

}  // namespace ho::doctor
