#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "client/transfer/arena_map.hpp"

namespace ho::client {

/// Which nodes of a pool can be lost together: those of one rack if every node names its rack and
/// there are several, else those of one machine if they run on several, else each by itself. A
/// value.
class FailureDomains {
 public:
  struct Place {
    std::string rack;  ///< empty: not known
    std::string machine;
  };
  /// @param nodes  by NodeIndex, including lost nodes: a rack that is down must not make the nodes
  /// of the only other one count as apart.
  explicit FailureDomains(std::span<const Place> nodes);

  /// Whether two homes of a value may lie on these nodes.
  [[nodiscard]] bool are_apart(NodeIndex a, NodeIndex b) const {
    return domain_.at(a.value()) != domain_.at(b.value());
  }
  /// Whether two homes of a value may lie on two of these nodes.
  [[nodiscard]] bool some_apart(std::span<const NodeIndex> nodes) const;
  /// In how many racks, or on how many machines, these nodes are. Nodes of one machine count as
  /// one.
  [[nodiscard]] std::size_t count(std::span<const NodeIndex> nodes) const;
  /// "racks", "machines" or "nodes".
  [[nodiscard]] const char* kind() const;

 private:
  enum class Kind : std::uint8_t { kRacks, kMachines, kNodes };

  std::vector<std::uint32_t> domain_;  ///< by node
  Kind kind_ = Kind::kRacks;
};

}  // namespace ho::client
