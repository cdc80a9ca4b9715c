#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/model/hardware.hpp"
#include "common/schedule/schedule.hpp"
#include "tools/analyzer/problem/liveness.hpp"

namespace ho::analyzer {

/// A home tier that the plan may use, with the links as one transfer sees them.
struct PlanTier {
  schedule::HomeTier tier = schedule::HomeTier::kLocalDdr;
  std::uint64_t capacity_bytes = 0;
  Link read;
  Link write;
  /// The links' share while all tiers move at a time: they use one port of the device.
  Link shared_read = {};
  Link shared_write = {};
};

/// The tiers of `hardware` that hold homes, fastest first.
[[nodiscard]] std::vector<PlanTier> plan_tiers(const Hardware& hardware);

/// Flash below local DDR, if the hardware has both.
[[nodiscard]] std::optional<PlanTier> plan_flash(const Hardware& hardware);

/// A step to decide about, on tiers of given speed. References outlive it.
struct Problem {
  const Lifetimes& lifetimes;
  const std::vector<std::int64_t>& duration_ns;     ///< per position
  const std::vector<PlanTier>& tiers;               ///< may be empty: then nothing can move
  const std::vector<std::uint8_t>& tier_of;         ///< per storage, index into `tiers`
  const std::vector<std::uint8_t>& home_is_static;  ///< per storage: persistent, or an INPUT
  const PlanTier* flash = nullptr;  ///< below local DDR, tier 0, which is then first
};

/// How long writing a storage home keeps the write link of its tier busy. Second homes are in the
/// last tier.
[[nodiscard]] std::int64_t store_ns(const Problem& input, std::uint32_t storage);

}  // namespace ho::analyzer
