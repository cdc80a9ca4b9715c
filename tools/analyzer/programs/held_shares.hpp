#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/model/hardware.hpp"
#include "tools/analyzer/ranks/shares.hpp"

namespace ho::analyzer {

/// What a rank wants of the links that it crosses.
struct LinkClaim {
  std::uint32_t weight = 1;             ///< > 0: of a link, ranks get parts by weight
  std::uint64_t least_bytes_per_s = 0;  ///< that it gets at least, each way
};

/// Parts of all links for each rank, if it takes more than fair sharing to keep the claims: where
/// weights differ on a link, or a rank wants more than an equal part of one. Those whose part by
/// weight is less than they want at least get that; the others divide the rest by weight. Nothing:
/// no rank has to be held back.
/// @pre on no link do the least rates exceed the capacity; hardware has a path for each rank, or
/// one for all, or none
[[nodiscard]] std::optional<std::vector<std::vector<LinkShare>>> held_shares(
    const Hardware& hardware, const std::vector<LinkClaim>& claims);

}  // namespace ho::analyzer
