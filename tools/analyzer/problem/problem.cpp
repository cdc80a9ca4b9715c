#include "tools/analyzer/problem/problem.hpp"

#include <algorithm>

#include "common/model/links.hpp"

namespace ho::analyzer {
namespace {

/// Each tier's share of a port that all of them use at a time, by their rates.
void share(std::vector<PlanTier>& tiers, const std::optional<Link>& port, Link PlanTier::*alone,
           Link PlanTier::*shared) {
  double rate = 0;
  for (const PlanTier& tier : tiers) rate += static_cast<double>((tier.*alone).bytes_per_s);
  const double part =
      port ? std::min(1.0, static_cast<double>(port->bytes_per_s) / std::max(rate, 1.0)) : 1.0;
  for (PlanTier& tier : tiers) {
    tier.*shared = tier.*alone;
    const auto left = static_cast<double>((tier.*alone).bytes_per_s) * part;
    (tier.*shared).bytes_per_s = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(left));
  }
}

}  // namespace

std::vector<PlanTier> plan_tiers(const Hardware& hardware) {
  std::vector<PlanTier> tiers;
  const auto add = [&](schedule::HomeTier tier, const std::optional<TierSpec>& spec) {
    if (!spec) return;
    tiers.push_back({tier, spec->capacity_bytes,
                     effective_link(spec->read, hardware.device_port_read),
                     effective_link(spec->write, hardware.device_port_write)});
  };
  add(schedule::HomeTier::kLocalDdr, hardware.local_ddr);
  add(schedule::HomeTier::kRemoteDdr, hardware.remote_ddr);
  share(tiers, hardware.device_port_read, &PlanTier::read, &PlanTier::shared_read);
  share(tiers, hardware.device_port_write, &PlanTier::write, &PlanTier::shared_write);
  return tiers;
}

std::optional<PlanTier> plan_flash(const Hardware& hardware) {
  if (!hardware.flash || !hardware.local_ddr) return std::nullopt;
  return PlanTier{schedule::HomeTier::kFlash, hardware.flash->capacity_bytes, hardware.flash->read,
                  hardware.flash->write};
}

std::int64_t store_ns(const Problem& input, std::uint32_t storage) {
  const std::size_t tier = input.tier_of[storage];
  const auto once = transfer_ns(input.tiers[tier].write, input.lifetimes.bytes[storage]);
  const bool twice = input.lifetimes.copies[storage] > 1 && tier + 1 == input.tiers.size();
  return twice ? 2 * once : once;
}

}  // namespace ho::analyzer
