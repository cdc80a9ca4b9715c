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

/// Plays one step and packs what was decided, with homes and room that the caller chooses. Its
/// input outlives it.
class PlanMaker {
 public:
  explicit PlanMaker(const PlanInput& input);

  /// The work to pack the device once, in units of the usual work of one packing.
  static constexpr std::uint64_t kPatience = 4;

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
  /// The most passes of a series, and the most steps of each. Fewer in large steps.
  [[nodiscard]] int passes_max() const { return passes_max_; }
  [[nodiscard]] int steps_max() const { return steps_max_; }
  /// Spent on plays and packings so far: units of about a nanosecond, counted and not timed.
  [[nodiscard]] std::uint64_t work() const { return work_; }
  /// Enough to plan such a step: an amount for any, and more for each use of its storages.
  [[nodiscard]] std::uint64_t usual_work() const;
  /// On the device, for the first play of a series: less than all in large steps, where a packing
  /// that just exceeds it takes long.
  [[nodiscard]] std::uint64_t first_room_bytes() const;
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
  [[nodiscard]] std::optional<Played> play(PassOptions options, Slots slots);

  /// Makes the plan of decisions; its arena and homes may exceed what there is. Early fetches wait
  /// until their latest start: that makes room to pack in. Not with flash, where they make room in
  /// local DDR. `step_ns` is set if the plan fits.
  [[nodiscard]] Plan pack(Decisions decisions, std::uint64_t patience = kPatience);
  /// Equal for decisions that pack() makes one plan of.
  [[nodiscard]] std::uint64_t key_of(const Decisions& decisions) const;
  /// Whether the homes of that plan would fit, in a fraction of pack()'s time; true with flash,
  /// where that depends on what is staged.
  [[nodiscard]] bool homes_would_fit(Decisions decisions) const;
  [[nodiscard]] bool fits(const Plan& plan) const;

 private:
  [[nodiscard]] TimedStep::List timed(const std::vector<schedule::CacheOp>& list) const;
  void replay(Plan& plan) const;

  const PlanInput& in_;
  std::vector<std::int64_t> durations_;
  std::vector<std::uint8_t> at_home_;
  std::vector<std::uint8_t> tier_of_;
  Links links_as_ = Links::kAlone;
  std::vector<PlanTier> links_;  ///< the tiers for these homes
  bool staged_ = false;
  std::uint64_t kept_bytes_ = 0;
  int passes_max_;
  int steps_max_;
  std::uint64_t work_ = 0;
};

}  // namespace ho::analyzer
