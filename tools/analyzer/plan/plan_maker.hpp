#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tools/analyzer/plan/planner.hpp"
#include "tools/analyzer/play/passes.hpp"
#include "tools/analyzer/play/play.hpp"
#include "tools/analyzer/problem/problem.hpp"
#include "tools/simulator/simulate.hpp"

namespace ho::analyzer {

/// The work for a step of some size: planning time stays near-linear.
struct Effort {
  std::size_t ops_max = 0;
  std::size_t series = 0;      ///< ways to begin a series of passes
  std::size_t far_series = 0;  ///< further ones while the step is far from its bound
  int rounds = 0;              ///< packings of a series
  int homes_passes = 0;        ///< to decide where homes are
  int passes = 0;
  int steps = 0;
  int advice = 0;                   ///< capacities tried to find one that is enough
  int advice_searches = 0;          ///< of these by the whole search, for less
  std::uint64_t patience = 1;       ///< work to pack the device once, in units of the usual work
  std::uint64_t more_patience = 0;  ///< the same for all plans that nearly fit
};

/// Plays one step and packs what was decided, with homes and room that the caller chooses. Its
/// input outlives it.
class PlanMaker {
 public:
  explicit PlanMaker(const PlanInput& input);

  /// One tier's links alone, or each with its share of a port that all of them use at a time.
  enum class Links : std::uint8_t { kAlone, kShared };
  void use_homes(std::vector<std::uint8_t> tier_of, Links links);
  /// Whether values go from local DDR to flash.
  enum class Flash : std::uint8_t { kUnused, kUsed };
  void use_flash(Flash flash) { staged_ = flash == Flash::kUsed && in_.flash.has_value(); }
  /// The smallest storages may leave the device as well.
  void keep_none() { kept_bytes_ = 0; }

  [[nodiscard]] bool uses_flash() const { return staged_; }
  [[nodiscard]] const std::vector<std::uint8_t>& tier_of() const { return tier_of_; }
  [[nodiscard]] Links links() const { return links_as_; }
  [[nodiscard]] const PlanInput& input() const { return in_; }
  [[nodiscard]] const Effort& effort() const { return effort_; }
  [[nodiscard]] Problem problem() const;
  /// A value per position.
  [[nodiscard]] std::vector<std::int64_t> everywhere(std::uint64_t bytes) const {
    return std::vector<std::int64_t>(in_.lifetimes.positions, static_cast<std::int64_t>(bytes));
  }
  /// Gaps that may be spent off the device, per gap.
  [[nodiscard]] std::vector<std::uint8_t> candidates() const;

  /// Decides where homes are and whether flash is needed, by what leaves with room for all below.
  /// @return false if the step cannot be played.
  bool settle_homes();

  /// Room for homes and slots while a step is played.
  enum class Slots : std::uint8_t { kLimited, kUnlimited };
  /// @param options  all but `slot_bytes`
  [[nodiscard]] std::optional<Played> play(PassOptions options, Slots slots) const;

  /// Makes the plan of decisions; its arena and homes may exceed what there is. Early fetches wait
  /// until their latest start: that makes room to pack in. Not with flash, where they make room in
  /// local DDR. `step_ns` is set if the plan fits.
  /// @param patience  as in Effort
  [[nodiscard]] Plan pack(Decisions decisions, std::uint64_t patience) const;
  /// Whether the homes of that plan would fit, in a fraction of pack()'s time; true with flash,
  /// where that depends on what is staged.
  [[nodiscard]] bool homes_would_fit(Decisions decisions) const;
  [[nodiscard]] bool fits(const Plan& plan) const;

 private:
  [[nodiscard]] TimedStep::List timed(const std::vector<schedule::CacheOp>& list) const;
  void replay(Plan& plan) const;

  const PlanInput& in_;
  const Effort& effort_;
  std::vector<std::int64_t> durations_;
  std::vector<std::uint8_t> at_home_;
  std::vector<std::uint8_t> tier_of_;
  Links links_as_ = Links::kAlone;
  std::vector<PlanTier> links_;  ///< the tiers for these homes
  bool staged_ = false;
  std::uint64_t kept_bytes_ = 0;
};

}  // namespace ho::analyzer
