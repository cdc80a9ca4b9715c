#pragma once

#include <cstdint>
#include <optional>

#include "common/model/graph.hpp"
#include "common/model/hardware.hpp"
#include "tools/analyzer/emit/emit.hpp"
#include "tools/analyzer/problem/options.hpp"

namespace ho::analyzer {

/// How many homes a storage gets: what the storage itself says, else its kind, else the default
/// (Options::copies).
[[nodiscard]] std::uint32_t copies_of(const Storage& storage, const CopiesByKind& wanted,
                                      const Hardware& hardware);

/// Whether the second homes of with_copies() are wished for, not just the default.
[[nodiscard]] bool asks_for_copies(const Graph& graph, const CopiesByKind& wanted);

/// The graph with copies_of() filled in; nothing: no storage gets two.
[[nodiscard]] std::optional<Graph> with_copies(const Graph& graph, const CopiesByKind& wanted,
                                               const Hardware& hardware);

/// What second homes need at most: each keeps its bytes all the time. Sizes are rounded up to
/// `align_bytes`.
[[nodiscard]] std::uint64_t second_home_bytes(const Graph& graph, std::uint64_t align_bytes);

/// Doubles every Store of a storage with two copies: the second one starts when the first may, and
/// whatever waits for the first waits for it, too. O(n).
void add_second_stores(const Graph& graph, Draft& draft);

/// Gives each of these storages that has a home a second one, for itself alone, in `tier`, from
/// `begin_bytes` on. @return where they end.
std::uint64_t place_second_homes(const Graph& graph, std::uint64_t align_bytes,
                                 schedule::HomeTier tier, std::uint64_t begin_bytes,
                                 schedule::Schedule& out);

}  // namespace ho::analyzer
