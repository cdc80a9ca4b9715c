#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "common/base/result.hpp"
#include "common/schedule/schedule.hpp"

namespace ho::analyzer {

/// Homes that storages of each kind get below the device, by StorageKind; 0: the default. The
/// number of kUnspecified is for persistent storages of kinds without one. A storage that
/// says itself how many gets those.
using CopiesByKind = std::array<std::uint8_t, static_cast<std::size_t>(kStorageKindLast) + 1>;

/// Reads "KIND=N", such as "WEIGHT=2" or "optimizer_state=1", or "N" for persistent storages:
/// weights, optimizer state, KV caches and outputs. @return kInvalidArgument, with the known names.
[[nodiscard]] Result<CopiesByKind> parse_copies(const std::vector<std::string>& texts);

inline constexpr std::uint32_t kEffortMax = 100;

struct Options {
  std::uint64_t device_budget_bytes = 0;
  std::uint64_t align_bytes = 64;  ///< alignment of device offsets; a power of two
  /// By default persistent weights and optimizer state have two if the hardware names two failure
  /// domains, all others one. A plan with second homes uses no flash. Where the tiers lack room for
  /// the default, each storage has one.
  CopiesByKind copies = {};
  bool keep_order = false;  ///< ops run in the graph's order, each once
  /// Any plan whose step is this short will do, and a refusal gets no advice: Infeasible then tells
  /// what the first try lacked, "links" where it was too long. Plans that are a little longer may
  /// come out, too. 0: the shortest plan, and advice.
  std::uint64_t enough_step_ns = 0;
  /// So many times the usual work, 1 .. kEffortMax; more never gives a longer step.
  std::uint32_t effort = 1;
  /// Called after each try, with the number of tries and the shortest step so far; 0: none fits
  /// yet. May be null.
  std::function<void(std::uint64_t, std::uint64_t)> progress = nullptr;
};

/// Why there is no plan: this op's working set, or this tier, needs more bytes than there are.
struct Infeasible {
  /// The evidence for the capacities below.
  enum class Proof : std::uint8_t {
    kTooLittle,  ///< less than these have no plan; these may be too little, too
    kPlanned,    ///< a plan was made with them
  };
  /// One more tier that is too small.
  struct Need {
    std::string tier;
    std::uint64_t needs_bytes = 0;
  };
  std::uint32_t op_id = 0;  ///< the graph's id
  std::string op_name;
  std::string tier;               ///< "device", "local_ddr", ...; "links" as in Options
  std::uint64_t needs_bytes = 0;  ///< capacity of that tier
  std::vector<Need> also = {};    ///< tiers that have to be larger besides
  Proof proof = Proof::kTooLittle;
};

using Outcome = std::variant<schedule::Schedule, Infeasible>;

}  // namespace ho::analyzer
