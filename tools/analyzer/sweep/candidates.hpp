#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

namespace ho::analyzer {

/// Next use (in the sweep's lap) and gap; the furthest next use first, ties by gap for determinism.
using Candidate = std::pair<std::int64_t, std::uint32_t>;

/// Gaps that may be moved, the furthest next use first. Three parts: the front is sorted, since one
/// position looks at the same gaps many times. Gaps that fall out of it are on a stack, the largest
/// on top. The rest is a heap, which sorts new gaps only when asked for more: most gaps are over by
/// then. One thread.
class Candidates {
 public:
  void add(Candidate candidate) {
    if (front_.empty() || candidate < front_.back()) {
      added_.push_back(candidate);
      return;
    }
    front_.insert(std::lower_bound(front_.begin(), front_.end(), candidate, std::greater<>()),
                  candidate);
    if (front_.size() <= kFrontMax) return;
    // No smaller than what fell out before, and no smaller than the rest.
    fallen_.push_back(front_.back());
    front_.pop_back();
  }

  /// Calls visit(candidate) for the first `most` whose next use lies behind `p`, until it returns
  /// false. Forgets those that `moved(gap)` names, and all once `p` has reached their next use: `p`
  /// never falls.
  template <typename Moved, typename Visit>
  void scan(std::int64_t p, std::size_t most, Moved&& moved, Visit&& visit) {
    std::size_t kept = 0;
    std::size_t i = 0;
    for (bool on = true; on && kept < most; ++i) {
      if (i == front_.size() && !draw(p)) break;
      const Candidate candidate = front_[i];
      if (candidate.first <= p) {
        front_.resize(i);
        fallen_.clear();
        rest_ = {};
        break;
      }
      if (moved(candidate.second)) continue;
      front_[kept++] = candidate;
      on = visit(candidate);
    }
    const auto at = [&](std::size_t index) {
      return front_.begin() + static_cast<std::ptrdiff_t>(index);
    };
    front_.erase(at(kept), at(std::min(i, front_.size())));
  }

 private:
  /// Insertion moves what lies behind: what scans do not draw is kept below this.
  static constexpr std::size_t kFrontMax = 256;

  /// Takes the largest that is not in front yet. @return false where none is left
  bool draw(std::int64_t p) {
    for (const Candidate& each : added_) {
      if (each.first > p) rest_.push(each);
    }
    added_.clear();
    if (!fallen_.empty() && (rest_.empty() || rest_.top() < fallen_.back())) {
      front_.push_back(fallen_.back());
      fallen_.pop_back();
      return true;
    }
    if (rest_.empty()) return false;
    front_.push_back(rest_.top());
    rest_.pop();
    return true;
  }

  std::vector<Candidate> front_;   ///< descending, none before any of the others
  std::vector<Candidate> fallen_;  ///< ascending
  std::vector<Candidate> added_;   ///< for `rest_`, not sorted
  std::priority_queue<Candidate> rest_;
};

}  // namespace ho::analyzer
