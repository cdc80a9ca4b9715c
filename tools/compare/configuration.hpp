#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "common/schedule/schedule.hpp"
#include "tools/compare/job.hpp"
#include "tools/compare/planned.hpp"
#include "tools/compare/record.hpp"
#include "tools/examples/gpt/arena.hpp"

namespace ho::gpt {

enum class PolicyKind : std::uint8_t { kResident, kPlanned, kOnDemandLru };

/// "resident", "planned", "on-demand-lru".
[[nodiscard]] std::string policy_name(PolicyKind policy);

/// What all configurations of one process share. Refers to what outlives it.
struct Workbench {
  const Model& model;
  const Text& text;
  const std::atomic<bool>& stop;
  std::string pool;       ///< address
  std::string transport;  ///< "auto", "local", "tcp"
  /// The model's graph with measured durations, once a configuration has profiled it.
  std::optional<Graph> profile;
};

/// "60%" of the graph's peak_unmanaged_bytes, or a size, as bytes; whole multiples of 64.
/// @return kInvalidArgument where it is neither.
[[nodiscard]] Result<std::uint64_t> device_budget_bytes(const Graph& graph,
                                                        const std::string& text);

struct ConfigurationSpec {
  std::string label;
  PolicyKind policy = PolicyKind::kResident;
  std::uint64_t budget_bytes = 0;  ///< unused by resident
  /// Policy planned: DDR for homes and staging, the rest goes to flash. Bytes ("64MiB"), or a share
  /// ("50%") of the DDR that a plan without this limit uses; empty: as much as is needed.
  std::string ddr_memory = {};
  std::uint64_t link_bytes_per_s = 0;  ///< limit of the link to the pool, each way; 0: none
};

/// One way of running the job, from its arena to its record. A resource.
class Configuration {
 public:
  /// Connects, profiles and plans as the policy needs, and gives every tensor its initial value.
  /// A planned one that finds no profile in the workbench makes one: two steps on the on-demand
  /// machinery in this arena, then everything begins anew.
  /// @return kOutOfRange where the budget cannot be met, saying which op needs how much;
  ///         kUnsupported where ddr_memory is given and the pool has no flash;
  ///         kCanceled after a stop request; else what the pool says.
  [[nodiscard]] static Result<std::unique_ptr<Configuration>> create(const ConfigurationSpec& spec,
                                                                     Workbench& bench);

  /// Runs one step. A step not kept counts its loss only: it warms up.
  enum class Keep : std::uint8_t { kNo, kYes };
  [[nodiscard]] Result<void> step(Keep keep);

  /// Measures each op's own time in two more steps and leaves the graph with these durations in the
  /// workbench. The record does not count them.
  [[nodiscard]] Result<void> profile();

  [[nodiscard]] RunRecord& record() { return record_; }
  /// Only planned configurations have one.
  [[nodiscard]] const std::optional<schedule::Schedule>& schedule() const { return schedule_; }
  [[nodiscard]] Result<schedule::MeasuredStep> timeline() const;

 private:
  Configuration(const ConfigurationSpec& spec, Workbench& bench) : spec_(spec), bench_(bench) {}

  [[nodiscard]] Result<void> open();
  [[nodiscard]] Result<void> open_pool();
  [[nodiscard]] Result<void> open_planned();
  [[nodiscard]] Result<void> make_profile();
  [[nodiscard]] Result<Hardware> measure();
  /// A share of the DDR that another plan uses may be less than any plan needs: then the hardware's
  /// local DDR grows to that.
  [[nodiscard]] Result<schedule::Schedule> plan(Hardware& hardware);
  [[nodiscard]] Result<void> profile_steps_of(Job& job);

  ConfigurationSpec spec_;
  Workbench& bench_;
  RunRecord record_;
  std::unique_ptr<Arena> arena_;  // in the order of construction: what is below uses what is above
  std::unique_ptr<hyperoffload::Pool> pool_;
  std::unique_ptr<Residence> residence_;
  Planned* planned_ = nullptr;  // residence_, where it is that
  std::unique_ptr<Job> job_;
  std::optional<schedule::Schedule> schedule_;
};

}  // namespace ho::gpt
