#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "tools/analyzer/problem/slack_tree.hpp"

namespace ho::analyzer {

/// Free bytes per position from the next position on, for one step ahead. Positions count over all
/// steps. The caller reports each position that it has passed, which resets it for the next step.
class PlayRoom {
 public:
  explicit PlayRoom(std::vector<std::int64_t> bytes) : first_(std::move(bytes)), tree_(first_) {}

  /// The least of positions [from, to), at most one lap.
  [[nodiscard]] std::int64_t least(std::int64_t from, std::int64_t to) const {
    std::int64_t result = std::numeric_limits<std::int64_t>::max();
    each_part(from, to, [&](std::int64_t first, std::int64_t last) {
      result = std::min(result, tree_.min(first, last));
    });
    return result;
  }
  void take(std::int64_t from, std::int64_t to, std::int64_t bytes) {
    each_part(from, to,
              [&](std::int64_t first, std::int64_t last) { tree_.add(first, last, -bytes); });
  }
  void pass(std::int64_t position) {
    const std::int64_t p = position % size();
    const std::int64_t taken = first_[static_cast<std::size_t>(p)] - tree_.min(p, p);
    if (taken != 0) tree_.add(p, p, taken);
  }

 private:
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(first_.size()); }
  template <typename Visit>
  void each_part(std::int64_t from, std::int64_t to, Visit&& visit) const {
    if (from >= to) return;
    const std::int64_t lap = from / size() * size();
    from -= lap;
    to = std::min(to - lap, from + size());
    visit(from, std::min(to, size()) - 1);
    if (to > size()) visit(0, to - size() - 1);
  }

  std::vector<std::int64_t> first_;
  SlackTree tree_;
};

}  // namespace ho::analyzer
