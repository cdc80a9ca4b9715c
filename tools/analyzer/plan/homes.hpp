#pragma once

#include <cstdint>
#include <vector>

#include "common/model/graph.hpp"
#include "tools/analyzer/emit/emit.hpp"
#include "tools/analyzer/problem/decisions.hpp"
#include "tools/analyzer/problem/problem.hpp"

namespace ho::analyzer {

/// Each storage's tier if all had room: the nearest, or the further one by the hint
/// PREFER_REMOTE.
[[nodiscard]] std::vector<std::uint8_t> hinted_homes(const Graph& graph, std::size_t tiers);

/// Moves homes from a tier that decisions overfills to the other: as few as needed, those that
/// move least first. The further tier may still be too small for them.
[[nodiscard]] std::vector<std::uint8_t> homes_that_fit(const Graph& graph, const Problem& input,
                                                       const Decisions& decisions);

/// The tiers' links as transfers find them while all are busy: with their shares of the port.
[[nodiscard]] std::vector<PlanTier> shared_links(std::vector<PlanTier> tiers);

/// Which homes are divided among the tiers.
enum class Spread : std::uint8_t {
  kMoved,  ///< those of values that move
  kAll,    ///< also, among themselves, those of values that may: with other homes others leave
};

/// Divides the transfers of decisions among the links of both tiers: in the order of need, each
/// storage without a hint goes to the link that would finish it sooner, as far as there is room.
/// @param tiers  with their links alone
/// @param near_first  homes that `decisions` were made for
/// @return `near_first` if the port leaves no gain, or the sizes do not fit into the tiers so.
[[nodiscard]] std::vector<std::uint8_t> homes_spread(const Graph& graph, const Problem& input,
                                                     const std::vector<PlanTier>& tiers,
                                                     const std::vector<std::uint8_t>& near_first,
                                                     const Decisions& decisions, Spread spread);

/// Whether the homes and slots of a draft fit into their tiers.
[[nodiscard]] bool homes_fit(const Draft& draft, const std::vector<PlanTier>& tiers);

}  // namespace ho::analyzer
