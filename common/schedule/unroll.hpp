#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/schedule/describe.hpp"
#include "common/schedule/schedule.hpp"
#include "common/schedule/validate.hpp"

namespace ho::schedule::proof {

/// A moment of the compute chain, the total order that all executions share. For each step: its
/// begin, then the start and the end of each position. A larger number is later.
using Moment = std::uint32_t;
/// One execution of one cache op: step * cache_ops.size() + index; then those of the prologue, then
/// those of the epilogue.
using InstanceId = std::uint32_t;

inline constexpr Moment kBeforeAll = 0;
/// Steps in the unrolled schedule: the first step (after the prologue), a steady step, and another
/// step after a steady step.
inline constexpr std::uint32_t kSteps = 3;

/// Whether a Detach is complete as soon as all that it waits for is. Where the job drops the memory
/// it takes time, like a transfer.
enum class Detaches : std::uint8_t { kTakeNoTime, kTakeTime };

/// A schedule unrolled over kSteps steps: when each instance of a cache op can run relative to the
/// compute chain and to other instances, and one possible order of all events.
///
/// A proof may rely on completes_before(): it holds in every execution. The linear order is only
/// one execution; walking it visits each event after those that must precede it.
class Unrolled {
 public:
  /// Computes the order. The schedule must outlive this object and have passed check_structure().
  Unrolled(const Schedule& schedule, Detaches detaches);

  /// A cycle through dependencies and positions, a schedule too large to unroll, or nullopt.
  [[nodiscard]] const std::optional<Violation>& violation() const { return violation_; }

  [[nodiscard]] Moment step_begin(std::uint32_t step) const {
    return 1 + step * (2 * positions_ + 1);
  }
  [[nodiscard]] Moment op_start(std::uint32_t step, std::uint32_t position) const {
    return step_begin(step) + 1 + 2 * position;
  }
  [[nodiscard]] Moment op_end(std::uint32_t step, std::uint32_t position) const {
    return op_start(step, position) + 1;
  }
  /// The moment when the last op of the last step has ended and all instances of the steps are
  /// complete.
  [[nodiscard]] Moment finish() const { return step_begin(kSteps); }

  [[nodiscard]] const CacheOp& op(InstanceId instance) const { return *at(instance).op; }
  [[nodiscard]] CacheOpList list(InstanceId instance) const { return at(instance).list; }
  [[nodiscard]] std::uint32_t step(InstanceId instance) const { return at(instance).step; }
  [[nodiscard]] std::string describe(InstanceId instance) const;
  [[nodiscard]] std::string describe_position(std::uint32_t step, std::uint32_t position) const;

  /// The largest moment known to precede the start of the instance.
  [[nodiscard]] Moment starts_after(InstanceId instance) const { return lo_[instance]; }
  /// The smallest moment known to follow the completion of the instance.
  [[nodiscard]] Moment complete_by(InstanceId instance) const { return hi_[instance]; }
  /// The first instance of a step; one behind the last step's for kSteps.
  [[nodiscard]] InstanceId first_of(std::uint32_t step) const { return step * steady_; }
  /// The instances that the instance waits for directly.
  [[nodiscard]] std::vector<InstanceId> waits_for(InstanceId instance) const;
  /// Whether `instance` is complete at `moment` in every execution. `moment` is the start of an op,
  /// the begin of a step or finish().
  [[nodiscard]] bool complete_at(InstanceId instance, Moment moment);
  /// Whether `a` is complete when `b` starts, in every execution. Returns false and sets
  /// exhausted() if the search exceeds its limit.
  [[nodiscard]] bool completes_before(InstanceId a, InstanceId b);
  [[nodiscard]] bool exhausted() const { return exhausted_; }

  /// The instances between a moment and the next one in the linear order.
  struct Range {
    const InstanceId* first = nullptr;
    const InstanceId* last = nullptr;
    [[nodiscard]] const InstanceId* begin() const { return first; }
    [[nodiscard]] const InstanceId* end() const { return last; }
  };
  [[nodiscard]] Range after(Moment moment) const;

 private:
  struct Place {
    const CacheOp* op = nullptr;
    CacheOpList list = CacheOpList::kSteady;
    std::uint32_t step = 0;
    std::uint32_t index = 0;
  };
  /// Cache ops of a list, grouped by the position or cache op that they refer to.
  struct Groups {
    std::vector<std::uint32_t> begin;
    std::vector<std::uint32_t> members;
  };

  [[nodiscard]] Place at(InstanceId instance) const;
  [[nodiscard]] static Groups group(std::uint32_t keys, const std::vector<std::uint32_t>& key_of);
  void build_groups();
  void count_waits();
  template <typename Visit>
  void for_each_dependency(InstanceId instance, Visit&& visit) const;
  template <typename Visit>
  void for_each_dependent(InstanceId instance, Visit&& visit) const;
  void arrange();
  void release(InstanceId instance);
  void run_ready(Moment moment);
  void run_moment(Moment moment);
  [[nodiscard]] bool check_awaited(std::uint32_t step, std::uint32_t position);
  [[nodiscard]] bool check_step_done(std::uint32_t step);
  void close_bounds();
  [[nodiscard]] Moment own_hi(InstanceId instance) const;
  [[nodiscard]] bool settled_before(InstanceId detach, Moment moment, int depth);
  [[nodiscard]] bool is_ancestor(InstanceId a, InstanceId b);

  const Schedule& schedule_;
  const Detaches detaches_;
  std::uint32_t positions_ = 0;
  std::uint32_t steady_ = 0;  ///< cache ops per step
  std::uint32_t instances_ = 0;
  std::uint32_t first_prologue_ = 0;
  std::uint32_t first_epilogue_ = 0;
  std::optional<Violation> violation_;

  Groups released_by_;  ///< per position, then for the begin of the step: steady cache ops
  Groups
      awaited_by_;  ///< per position: steady cache ops; the high bit marks those for the next step
  Groups prologue_awaited_by_;
  Groups dependents_;           ///< per steady cache op; the high bit marks those of the next step
  Groups prologue_dependents_;  ///< also those of the epilogue
  Groups epilogue_dependents_;

  std::vector<std::uint32_t> waits_;  ///< per instance: events it still waits for
  std::vector<Moment> lo_;            ///< per instance
  std::vector<Moment> hi_;           ///< per instance: a moment at which it is known to be complete
  std::vector<std::uint32_t> rank_;  ///< per instance: index in order_ plus one; 0: not placed yet
  std::vector<InstanceId> order_;    ///< linear order of the instances
  std::vector<std::uint32_t> after_begin_;  ///< per moment: first instance of order_ after it
  std::vector<InstanceId> ready_detaches_;
  std::vector<InstanceId> ready_transfers_;
  std::size_t next_detach_ = 0;
  std::size_t next_transfer_ = 0;

  std::uint64_t search_budget_ = 0;
  bool exhausted_ = false;
  std::vector<std::uint32_t> visited_;  ///< per instance: number of the last search that visited it
  std::uint32_t search_ = 0;
  std::vector<InstanceId> stack_;
};

}  // namespace ho::schedule::proof
