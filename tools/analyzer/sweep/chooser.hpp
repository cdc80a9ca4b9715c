#pragma once

#include <cstdint>
#include <optional>
#include <queue>
#include <utility>
#include <vector>

#include "common/base/buckets.hpp"
#include "tools/analyzer/problem/channels.hpp"
#include "tools/analyzer/sweep/candidates.hpp"
#include "tools/analyzer/sweep/choose.hpp"

namespace ho::analyzer {

/// The cost of moving a gap now.
struct Estimate {
  std::int64_t store_ns = 0;  ///< 0: a valid copy exists
  std::int64_t fetch_ns = 0;  ///< 0: overwritten at its next use
  std::int64_t store_late_ns = 0;
  std::int64_t fetch_late_ns = 0;
  std::int64_t fetch_window = 0;  ///< first slot the fetch may take
  [[nodiscard]] std::int64_t late_ns() const { return store_late_ns + fetch_late_ns; }
};

/// A gap to move, and its cost.
struct Pick {
  std::uint32_t gap = 0;
  Estimate cost;
};

/// The candidates for a move at a position. `late` counts only if `free` is empty.
struct Found {
  std::optional<Pick> free;  ///< the first whose transfers fit into free link time
  std::optional<Pick> late;  ///< the one that stalls least for what it relieves
};

/// The work of one choose(). Internal to choose.cpp (the sweep) and refine.cpp (what follows it).
/// Run once.
class Chooser {
 public:
  Chooser(const ChooseInput& input, const ChooseOptions& options);
  Choice run();

 private:
  [[nodiscard]] const Gap& gap(std::uint32_t index) const { return in_.lifetimes.gaps[index]; }
  [[nodiscard]] std::int64_t bytes(const Gap& g) const {
    return static_cast<std::int64_t>(in_.lifetimes.bytes[g.storage]);
  }
  [[nodiscard]] std::int64_t read_ns(const Gap& g) const { return move_ns_[g.storage].fetch; }
  [[nodiscard]] std::int64_t write_ns(const Gap& g) const { return move_ns_[g.storage].store; }
  /// `p` of this sweep in the gap's own frame.
  [[nodiscard]] std::int64_t in_frame(const Gap& g, std::int64_t p) const {
    return g.wraps && p <= g.from ? p + n_ : p;
  }
  void start();
  void open(std::int64_t p);
  void relieve(std::int64_t p);
  [[nodiscard]] Found look(std::int64_t p, Candidates& candidates);
  bool delay(std::int64_t p);
  bool hasten(std::int64_t p);
  [[nodiscard]] Estimate estimate_store(std::uint32_t index, std::int64_t p) const;
  void estimate_fetch(std::uint32_t index, std::int64_t p, Estimate& cost) const;
  [[nodiscard]] std::int64_t fetch_window(const Gap& g, std::int64_t at,
                                          std::int64_t fetch_ns) const;
  [[nodiscard]] bool home_has_room(std::uint32_t index) const;
  void move(std::uint32_t index, std::int64_t p, const Estimate& cost);
  void book_store(std::uint32_t index, std::int64_t at, std::int64_t store_ns);
  void store_by(const Gap& g, std::int64_t held);
  void claim_home(const Gap& g);
  void extend(std::int64_t slot, std::int64_t time_ns);
  void add_relief(std::uint32_t index, std::int64_t sign);
  void add_cyclic(std::int64_t first, std::int64_t last, std::int64_t delta);
  [[nodiscard]] std::int64_t min_cyclic(std::int64_t first, std::int64_t last) const;
  void take_back();
  void pull_forward();
  void fail(std::int64_t p);

  struct MoveNs {
    std::int64_t fetch = 0;
    std::int64_t store = 0;
  };

  const ChooseInput& in_;
  const ChooseOptions& options_;
  std::int64_t n_;
  std::vector<MoveNs> move_ns_;  // per storage; 0 where there is no tier
  Choice out_;
  SlackTree slack_;
  std::vector<Channel> read_;
  std::vector<Channel> write_;
  Channel clock_;  ///< never booked: tells planned time between slots
  std::vector<SlackTree> home_;
  std::vector<std::int64_t> home_from_;  // per storage, of shared slots: claimed positions
  std::vector<std::int64_t> home_to_;
  std::vector<std::int64_t> stored_by_;  // per version, in the writing step's frame
  Chains opens_;                         // per position: gaps whose inside begins there
  Candidates large_;
  Candidates small_;
  std::priority_queue<Candidate> fetching_;  // moved gaps that are coming back
  Chains comes_back_;                        // per position: of those, whose fetch begins there
  std::priority_queue<Candidate> leaving_;   // wrapping gaps whose write-back spans the step's end
  bool home_full_ = false;
};

}  // namespace ho::analyzer
