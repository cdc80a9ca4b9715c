#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "common/base/units.hpp"
#include "common/model/hardware.hpp"
#include "tools/analyzer/ranks/shares.hpp"

namespace ho::analyzer {

/// The bytes of a version that concern one rank.
struct RankBytes {
  std::uint32_t rank = 0;  ///< its number in the supernode, which finds its path
  std::uint64_t bytes = 0;
};

/// An object that one program publishes and another one reads.
struct ObjectEdge {
  std::string object;
  std::size_t from = 0;  ///< programs, by index
  std::size_t to = 0;
  std::vector<RankBytes> publishers;    ///< what each stores of a version
  std::vector<RankBytes> readers;       ///< what each fetches of a version
  std::uint32_t every = 1;              ///< steps of `from` from one version to the next
  std::uint32_t versions = 2;           ///< kept at a time
  std::uint64_t largest_age_ns = 0;     ///< of the version in use; 0: any
  std::uint64_t least_bytes_per_s = 0;  ///< that each reading rank gets at least
};

/// When versions come and are looked for.
struct ObjectTimes {
  std::uint64_t shortest_interval_ns = 0;  ///< from one version to the next; > 0
  std::uint64_t longest_interval_ns = 0;   ///< not below the shortest
  /// From one look of a reader to the next, at most; 0: it waits for versions.
  std::uint64_t look_ns = 0;
};

/// How an object's versions move. Times are of the slowest rank.
struct ObjectRates {
  std::uint64_t interval_ns = 0;  ///< the longest
  std::uint64_t publish_ns = 0;
  std::uint64_t read_ns = 0;
  /// How old a version can be while it is used: the interval, publishing, the wait for the next
  /// look, and reading.
  std::uint64_t age_ns = 0;
  std::vector<std::uint64_t> reader_bytes_per_s;  ///< parallel to readers; 0: it reads nothing
};

/// How long bytes take at a rate, and the rate at which they take so long; both rounded up, and
/// UINT64_MAX where that is less.
[[nodiscard]] std::uint64_t time_ns(std::uint64_t bytes, std::uint64_t bytes_per_s);
[[nodiscard]] std::uint64_t rate_of(std::uint64_t bytes, std::uint64_t ns);

/// a + b, or UINT64_MAX where that is less.
[[nodiscard]] inline std::uint64_t sum_of(std::uint64_t a, std::uint64_t b) {
  return checked_add(a, b).value_or(UINT64_MAX);
}

/// Why there is no plan, for people.
struct Impossible {
  std::string why;
};

/// The lowest rates at which each reader keeps up with the versions, or with its own looks if these
/// are rarer, uses none that is too old, and never holds all versions when the next one comes.
/// Publishing takes what tier and links allow, at once. Readers use remote DDR, or local DDR where
/// there is no other.
/// @pre hardware is checked, and has a path for each rank, or one for all, or none
[[nodiscard]] std::variant<ObjectRates, Impossible> rates_of(const ObjectEdge& edge,
                                                             const ObjectTimes& times,
                                                             const Hardware& hardware);

/// What the object takes of each link, at most: per link, parallel to the hardware's. A version's
/// publishing counts as spread over the shortest interval.
[[nodiscard]] std::vector<LinkShare> link_use(const ObjectEdge& edge, const ObjectTimes& times,
                                              const ObjectRates& rates, const Hardware& hardware);

}  // namespace ho::analyzer
