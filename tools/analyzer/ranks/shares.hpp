#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/model/graph.hpp"
#include "common/model/hardware.hpp"
#include "common/schedule/schedule.hpp"
#include "tools/simulator/simulate_ranks.hpp"

namespace ho::analyzer {

/// The part of a shared link that one rank may use, in bytes per second.
struct LinkShare {
  std::uint64_t read_bytes_per_s = 0;
  std::uint64_t write_bytes_per_s = 0;
};

/// The entry of one rank in the hardware.
[[nodiscard]] const RankPath& path_of(const Hardware& hardware, std::size_t rank);

/// Whether a path of a tier names the link.
[[nodiscard]] bool names(const std::vector<std::string>& path, const SharedLink& link);

/// Whether any transfer of the rank crosses the link.
[[nodiscard]] bool crosses(const Hardware& hardware, std::size_t rank, const SharedLink& link);

/// Each link whole: the view of a rank that knows of no other.
[[nodiscard]] std::vector<LinkShare> whole_links(const Hardware& hardware);

/// Each link divided by the number of ranks that cross it.
[[nodiscard]] std::vector<LinkShare> equal_shares(const Hardware& hardware, std::size_t ranks);

/// One rank's machine: its tiers and ports within its shares, without links. Where both DDR tiers
/// cross a link, the port limits their sum.
/// @param shares  per link, each at least 1 byte per second
[[nodiscard]] Hardware for_one(const Hardware& hardware, std::size_t rank,
                               const std::vector<LinkShare>& shares);

/// The bytes that any plan of a step must fetch to the device and write back from it, in the
/// graph's order or that of `schedule`, whichever needs less.
[[nodiscard]] LinkBytes least_bytes(const Graph& graph, const schedule::Schedule& schedule);

}  // namespace ho::analyzer
