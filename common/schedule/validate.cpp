#include "common/schedule/validate.hpp"

#include "common/schedule/check_structure.hpp"
#include "common/schedule/static_rules.hpp"
#include "common/schedule/sweep.hpp"
#include "common/schedule/unroll.hpp"

namespace ho::schedule {

std::optional<Violation> validate(const Schedule& schedule) {
  if (auto sound = check_structure(schedule); !sound) {
    return Violation{"malformed", "schedule", "", sound.error().context()};
  }
  if (auto found = proof::check_static(schedule)) return found;
  if (auto found = proof::check_program_order(schedule)) return found;
  proof::Unrolled unrolled(schedule);
  if (unrolled.violation()) return unrolled.violation();
  return proof::Sweep(schedule, unrolled).run();
}

}  // namespace ho::schedule
