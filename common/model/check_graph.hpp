#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/result.hpp"
#include "common/model/graph.hpp"
#include "common/model/hardware.hpp"

namespace ho {

/// Largest size of a storage or a tier, and largest offset: the range of a GlobalAddress.
inline constexpr std::uint64_t kBytesMax = std::uint64_t{1} << 50U;
/// Largest sum of durations: about 146 years. Sums with transfers stay far below 2^64.
inline constexpr std::uint64_t kDurationNsMax = std::uint64_t{1} << 62U;

/// Formats an op as `op 12 ("fc1")`. Cuts long names and replaces control characters, since names
/// come from outside.
[[nodiscard]] std::string describe_op(std::uint32_t id, std::string_view name);
/// Formats a storage as `storage 7 ("w1")`.
[[nodiscard]] std::string describe_storage(std::uint32_t id, std::string_view name);

/// The name of an op, or `op 12` where it has none. As it is: the reader replaces control
/// characters.
[[nodiscard]] std::string op_label(std::uint32_t id, const std::string& name);
/// The name of a storage, or `storage 7`.
[[nodiscard]] std::string storage_label(std::uint32_t id, const std::string& name);

/// Checks the rules of a graph (FORMATS.md): unique ids, sane sizes, operands in range, no value
/// read before it exists, control dependencies that agree with program order.
/// @return kInvalidArgument for the first broken rule in file order; names the op or storage and
/// the field. Cost: linear in the number of accesses, plus one sort of the ids.
[[nodiscard]] Result<void> check_graph(const Graph& graph);

/// Checks that every link has a bandwidth and that all sizes are in range.
/// @return kInvalidArgument, naming the field.
[[nodiscard]] Result<void> check_hardware(const Hardware& hardware);

}  // namespace ho
