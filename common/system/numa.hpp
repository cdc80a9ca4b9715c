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
  std::uint64_t bytes = 0;            ///< without memory reserved for huge pages of any size
  std::uint64_t free_huge_bytes = 0;  ///< reserved in pages of 2 MiB, and free
  bool has_cpus = true;               ///< false for memory of a device or behind CXL
};

/// Parses a list in the kernel's notation, such as "0-2,5".
/// @return the nodes in ascending order, each once; kInvalidArgument if the text is empty, is not
/// such a list, or has a number above 1023.
[[nodiscard]] Result<std::vector<NumaNode>> parse_numa_nodes(std::string_view text);

/// Formats node numbers: "0, 1, 5".
[[nodiscard]] std::string list_numa_nodes(std::span<const NumaMemory> nodes);

/// Lists the nodes that have memory and that this process may use, in ascending order. Empty if the
/// kernel reports no nodes. `root` is a prefix for /proc and /sys, for tests.
[[nodiscard]] std::vector<NumaMemory> read_numa_memory(const std::string& root = "");

/// Makes future pages of a mapping come from one node, or from other nodes when it is full. Shared
/// memory keeps this setting in its file, for all its mappings.
///
/// The node is preferred, not bound: when a bound node is full, the kernel kills a process instead
/// of using the next node.
/// @return kPermissionDenied, kUnsupported (in some containers), kInvalidArgument (this process may
/// not use the node). On an error nothing changes. Source: mbind(2).
[[nodiscard]] Result<void> prefer_numa_node(std::span<std::byte> mapping, NumaNode node);

/// Tests on a page of its own whether prefer_numa_node() works for a node. Same errors.
[[nodiscard]] Result<void> check_numa_node(NumaNode node);

/// The node that holds most pages of a range, by up to 512 equally spaced samples; the lowest such
/// node in a tie. nullopt if this process has touched none of these pages or may not ask. Does not
/// touch the memory. One system call. Source: move_pages(2).
[[nodiscard]] std::optional<NumaNode> numa_node_of(std::span<const std::byte> memory);

/// The node of the core that runs the calling thread now.
[[nodiscard]] std::optional<NumaNode> numa_node_here();

}  // namespace ho
