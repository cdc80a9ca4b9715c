#pragma once

#include <cstdint>
#include <vector>

#include "common/model/graph.hpp"

namespace ho::analyzer {

/// The order in which a step runs: indices into Graph::ops. An op may occur twice (recompute).
using OpList = std::vector<OpIndex>;

/// Which ops must come before which, whatever the order: through data (a read after its write, a
/// write after every access of the old value), through `after`, and through fixed ops, which
/// nothing crosses. A value; O(accesses) to make and to hold.
class Dependencies {
 public:
  explicit Dependencies(const Graph& graph);

  /// Ops that come before `op`, each perhaps more than once; the fixed op before it included.
  [[nodiscard]] const std::vector<std::uint32_t>& before(std::uint32_t op) const {
    return before_[op];
  }

 private:
  std::vector<std::vector<std::uint32_t>> before_;
};

/// 0, 1, 2, ...: program order.
[[nodiscard]] OpList program_order(const Graph& graph);

/// What became of each op of a list: those in the longest run of ascending indices stay, and others
/// are moved, unless they run again.
enum class Kept : std::uint8_t { kStays, kMoved, kAgain };
/// O(n log n).
[[nodiscard]] std::vector<Kept> kept(const OpList& list);

/// How many ops of `list` must be moved to get it from program order.
[[nodiscard]] std::uint32_t moved(const OpList& list);

/// The step that runs `list`, as a graph of its own: an op that occurs twice stands there twice, so
/// ids are not unique. `list` respects `after`.
[[nodiscard]] Graph arranged(const Graph& graph, const OpList& list);

/// Moves the ops at the step's end (updates of weights) up to where their last input is ready: a
/// gradient then dies at once, and a weight is updated while it is on the device anyway. One list
/// for each guess of where that end begins.
[[nodiscard]] std::vector<OpList> update_early(const Graph& graph,
                                               const Dependencies& dependencies);

/// Moves ops that only lengthen lives where they stand (their inputs live on anyway, their outputs
/// wait) down to their first user.
[[nodiscard]] OpList produce_late(const Graph& graph, const Dependencies& dependencies);

}  // namespace ho::analyzer
