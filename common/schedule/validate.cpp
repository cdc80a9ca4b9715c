#include "common/schedule/validate.hpp"

#include "common/schedule/check_structure.hpp"
#include "common/schedule/static_rules.hpp"
#include "common/schedule/sweep.hpp"
#include "common/schedule/unroll.hpp"

namespace ho::schedule {

namespace {

std::optional<Violation> sweep(const Schedule& schedule, const proof::SweepRules& rules) {
  proof::Unrolled unrolled(schedule,
                           rules.host ? proof::Detaches::kTakeTime : proof::Detaches::kTakeNoTime);
  if (unrolled.violation()) return unrolled.violation();
  return proof::Sweep(schedule, unrolled, rules).run();
}

}  // namespace

std::optional<Violation> validate(const Schedule& schedule, Placement placement) {
  if (auto sound = check_structure(schedule); !sound) {
    return Violation{"malformed", "schedule", "", sound.error().context()};
  }
  if (auto found = proof::check_static(schedule, placement)) return found;
  if (auto found = proof::check_program_order(schedule)) return found;
  const bool host = placement == Placement::kByHost;
  auto found = sweep(schedule, {.offsets = !host, .host = host});
  if (!host || !found || found->rule != "live-bytes") return found;
  // Offsets that are legal hand bytes from stay to stay, too.
  if (proof::check_static(schedule, Placement::kPlanned)) return found;
  const auto by_offsets = sweep(schedule, {.offsets = true, .host = true});
  return by_offsets ? found : std::nullopt;
}

}  // namespace ho::schedule
