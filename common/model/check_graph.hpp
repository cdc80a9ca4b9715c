#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/result.hpp"
#include "common/model/graph.hpp"
#include "common/model/hardware.hpp"

namespace ho {

/// Largest size of a storage, a tier or an offset: what a GlobalAddress can name.
inline constexpr std::uint64_t kBytesMax = std::uint64_t{1} << 50U;
/// Largest sum of durations, about 146 years: sums with transfers stay far from 2^64.
inline constexpr std::uint64_t kDurationNsMax = std::uint64_t{1} << 62U;

/// `op 12 ("fc1")`. Names are cut and cleaned: they come from outside.
[[nodiscard]] std::string describe_op(std::uint32_t id, std::string_view name);
/// `storage 7 ("w1")`.
[[nodiscard]] std::string describe_storage(std::uint32_t id, std::string_view name);

/// The rules of a graph (FORMATS.md), whoever made it: unique ids, sane sizes, operands in range,
/// no value read before it exists, control dependencies that agree with program order.
/// @return kInvalidArgument naming op or storage and field: the first broken rule in file order.
/// Cost: linear in accesses, apart from sorting ids.
[[nodiscard]] Result<void> check_graph(const Graph& graph);

/// Every link that exists has a bandwidth; no size is absurd. @return kInvalidArgument naming the
/// field.
[[nodiscard]] Result<void> check_hardware(const Hardware& hardware);

}  // namespace ho
