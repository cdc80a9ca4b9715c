#pragma once

#include <fcntl.h>

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/model/address.hpp"
#include "common/system/numa.hpp"

// How descriptors are called in the store, and how their files are sealed. Short: all names
// together pass in one variable of the environment.
namespace ho::daemon {

inline const std::string kListenerName = "control";
inline const std::string kBlocksName = "blocks";
inline const std::string kExtentsName = "extents";
inline constexpr int kBlocksSeals = F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_WRITE | F_SEAL_SEAL;
inline constexpr int kManifestSeals = F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL;

[[nodiscard]] inline std::string segment_name(SegmentId id) {
  return "s" + std::to_string(id.value());
}
[[nodiscard]] inline std::string manifest_name(std::uint64_t generation) {
  return "m" + std::to_string(generation);
}

/// Memory that is not granted: "r17", or "r17n1" for a NUMA node.
[[nodiscard]] inline std::string reserved_name(std::uint64_t number,
                                               std::optional<NumaNode> place) {
  const std::string name = "r" + std::to_string(number);
  return place ? name + "n" + std::to_string(place->value()) : name;
}

/// The number behind a one-letter prefix. nullopt: another kind of name.
[[nodiscard]] inline std::optional<std::uint64_t> number_of(std::string_view name, char prefix) {
  std::uint64_t number = 0;
  if (name.size() < 2 || name.front() != prefix) return std::nullopt;
  const char* const end = name.data() + name.size();
  const auto parsed = std::from_chars(name.data() + 1, end, number);
  if (parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
  return number;
}

}  // namespace ho::daemon
