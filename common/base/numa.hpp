#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.hpp"
#include "common/base/strong.hpp"

namespace ho {

/// A NUMA node of this machine, by the kernel's number. Not a node of the pool.
using NumaNode = Strong<struct NumaNodeTag, std::uint32_t>;

/// Memory of one NUMA node.
struct NumaMemory {
  NumaNode node;
  std::uint64_t bytes = 0;            ///< but for what is set aside in huge pages, of any size
  std::uint64_t free_huge_bytes = 0;  ///< set aside in pages of 2 MiB, and free
  bool has_cpus = true;               ///< without: memory of a device, or behind CXL
};

/// Reads a list as the kernel writes it: "0-2,5". @return the nodes, ascending, each once;
/// kInvalidArgument: something else, nothing, or a number above 1023.
[[nodiscard]] Result<std::vector<NumaNode>> parse_numa_nodes(std::string_view text);

/// "0, 1, 5".
[[nodiscard]] std::string list_numa_nodes(std::span<const NumaMemory> nodes);

/// The nodes that have memory and that this process may use, ascending; none where the kernel tells
/// of none. `root` is put before /proc and /sys, for tests.
[[nodiscard]] std::vector<NumaMemory> read_numa_memory(const std::string& root = "");

/// Has pages of a mapping that are not there yet come from one node, or from others where it has
/// none left. Of shared memory it is the file that keeps this, for all its mappings.
///
/// Preferred, not bound: where a bound node is full the kernel ends a process rather than go to the
/// next one.
/// @return kPermissionDenied, kUnsupported (as containers have it), kInvalidArgument (this process
/// may not use that node). Nothing has changed then. Source: mbind(2).
[[nodiscard]] Result<void> prefer_numa_node(std::span<std::byte> mapping, NumaNode node);

/// Whether prefer_numa_node() is to be had for a node, tried on a page of its own.
[[nodiscard]] Result<void> check_numa_node(NumaNode node);

/// The node that most pages of a range lie on, by up to 512 samples at equal distances; of equals
/// the lowest. Nothing where this process has touched none of them or may not ask. Touches nothing;
/// one system call. Source: move_pages(2).
[[nodiscard]] std::optional<NumaNode> numa_node_of(std::span<const std::byte> memory);

/// The node of the core that the calling thread runs on at the moment.
[[nodiscard]] std::optional<NumaNode> numa_node_here();

}  // namespace ho
