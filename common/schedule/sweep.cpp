#include "common/schedule/sweep.hpp"

#include <utility>

#include "common/base/check.hpp"
#include "common/base/units.hpp"
#include "common/schedule/describe.hpp"

namespace ho::schedule::proof {

namespace {

/// Puts the home slots of all tiers into one address range: the tier is above the bits of an offset
/// plus a size.
std::uint64_t home_address(const HomeSlot& home) {
  constexpr unsigned kOffsetBits = 52;
  HO_CHECK(home.offset_bytes >> kOffsetBits == 0);
  return (static_cast<std::uint64_t>(home.tier) << kOffsetBits) + home.offset_bytes;
}

}  // namespace

Sweep::Sweep(const Schedule& schedule, Unrolled& unrolled, const SweepRules& rules)
    : schedule_(schedule),
      unrolled_(unrolled),
      rules_(rules),
      last_position_(schedule.storages.size(), kNone),
      states_(schedule.storages.size()),
      last_stay_(schedule.storages.size(), kNone),
      live_(schedule.arena_bytes) {
  for (std::uint32_t p = 0; p < schedule.positions.size(); ++p) {
    for (const Operand& operand : schedule.positions[p].operands) {
      last_position_[operand.storage.value()] = p;
    }
  }
  const std::size_t instances =
      kSteps * schedule.cache_ops.size() + schedule.prologue.size() + schedule.epilogue.size();
  for (auto& list : next_) list.assign(instances, kNone);
}

std::optional<Violation> Sweep::run() {
  for (std::uint32_t s = 0; s < schedule_.storages.size(); ++s) {
    if (!schedule_.storages[s].persistent) continue;
    if (auto found = supply(s, kBeforeAll)) return found;
  }
  if (auto found = run_instances(kBeforeAll)) return found;
  for (std::uint32_t step = 0; step < kSteps; ++step) {
    if (auto found = begin_step(step)) return found;
    if (auto found = run_instances(unrolled_.step_begin(step))) return found;
    for (std::uint32_t position = 0; position < schedule_.positions.size(); ++position) {
      if (auto found = run_op(step, position)) return found;
      if (auto found = run_instances(unrolled_.op_end(step, position))) return found;
    }
  }
  if (auto found = check_repeats()) return found;
  if (auto found = run_instances(unrolled_.finish())) return found;
  return finish();
}

/// Values of storages that are not persistent end. The job has filled the home slots of its inputs.
Sweep::Found Sweep::begin_step(std::uint32_t step) {
  const Moment moment = unrolled_.step_begin(step);
  HO_CHECK(free_at_.size() == step);
  free_at_.push_back(live_.free_at(moment, unrolled_.first_of(step)));
  for (std::uint32_t s = 0; s < schedule_.storages.size(); ++s) {
    const Storage& storage = schedule_.storages[s];
    if (storage.persistent) continue;
    HO_CHECK(states_[s].stay == kNone);
    forget_copies(states_[s]);
    if (storage.kind != StorageKind::kInput) continue;
    if (auto found = supply(s, moment)) return found;
  }
  return std::nullopt;
}

/// The job has written the value into every home slot.
Sweep::Found Sweep::supply(std::uint32_t storage, Moment moment) {
  for (std::uint8_t c = 0; c < copies_of(storage); ++c) {
    const Copy copy{.storage = storage, .slot = home_slot(storage, c), .index = c};
    if (auto found = write_copy(states_[storage].homes[c], copy, moment)) return found;
  }
  return std::nullopt;
}

Sweep::Found Sweep::run_instances(Moment moment) {
  for (const InstanceId instance : unrolled_.after(moment)) {
    Found found;
    switch (unrolled_.op(instance).kind) {
      case CacheOpKind::kPrefetch: found = prefetch(instance); break;
      case CacheOpKind::kStore: found = store(instance); break;
      case CacheOpKind::kDetach: found = detach(instance); break;
      case CacheOpKind::kStageIn: found = stage_in(instance); break;
      case CacheOpKind::kStageOut: found = stage_out(instance); break;
    }
    if (found) return found;
  }
  return std::nullopt;
}

Sweep::Found Sweep::run_op(std::uint32_t step, std::uint32_t position) {
  const auto& operands = schedule_.positions[position].operands;
  for (const Operand& operand : operands) {
    if (auto found = access(step, position, operand)) return found;
  }
  for (const Operand& operand : operands) {
    const std::uint32_t s = operand.storage.value();
    if (schedule_.storages[s].persistent || last_position_[s] != position) continue;
    if (auto found = end_of_life(step, position, s)) return found;
  }
  return std::nullopt;
}

/// Nothing needs the storage any more. A job that places it frees it then.
Sweep::Found Sweep::end_of_life(std::uint32_t step, std::uint32_t position, std::uint32_t storage) {
  HO_CHECK(states_[storage].stay != kNone);  // the op has just accessed it
  Stay& stay = stays_[states_[storage].stay];
  HO_CHECK(stay.storage == storage && stay.end == Stay::End::kLive);
  stay.end = Stay::End::kDied;
  states_[storage].stay = kNone;
  if (!rules_.host) return std::nullopt;
  for (InstanceId i = stay.first_store; i != kNone; i = next_[0][i]) {
    if (unrolled_.complete_at(i, unrolled_.op_start(step, position))) continue;
    return violation(
        "freed-before-store", unrolled_.describe_position(step, position), unrolled_.describe(i),
        "the storage ends with the op, which does not wait for the store that reads it");
  }
  live_.end_at(unrolled_.op_end(step, position), bytes_of(stay));
  return std::nullopt;
}

std::uint64_t Sweep::bytes_of(const Stay& stay) const {
  return align_up(schedule_.storages[stay.storage].bytes, schedule_.align_bytes);
}

Sweep::Found Sweep::access(std::uint32_t step, std::uint32_t position, const Operand& operand) {
  const std::uint32_t s = operand.storage.value();
  State& state = states_[s];
  const Moment start = unrolled_.op_start(step, position);
  const auto fail = [&](const char* rule, std::string second, std::string detail) {
    return violation(rule, unrolled_.describe_position(step, position), std::move(second),
                     std::move(detail));
  };
  if (state.stay == kNone) {
    if (operand.access != Access::kWrite) {
      return fail("not-resident", storage_name(s),
                  "the op reads the storage, but no cache op brought it to the device");
    }
    const Stay stay{
        .storage = s, .arrived = true, .begin = start, .offset_bytes = operand.device_offset_bytes};
    if (auto found = begin_stay(stay)) return found;
  }
  Stay& stay = stays_[state.stay];
  if (rules_.offsets && stay.offset_bytes != operand.device_offset_bytes) {
    return fail("wrong-offset", describe_stay(stay),
                "the op expects the storage at " + std::to_string(operand.device_offset_bytes) +
                    "; it is at " + std::to_string(stay.offset_bytes));
  }
  if (!stay.arrived) {
    if (!unrolled_.complete_at(stay.prefetch, start)) {
      return fail("prefetch-late", unrolled_.describe(stay.prefetch),
                  "the op does not wait for the prefetch of its operand");
    }
    stay.arrived = true;
  }
  if (operand.access != Access::kRead) {
    if (auto found = write(step, position, stay)) return found;
    forget_copies(state);
  }
  return std::nullopt;
}

/// The storage has another value, or none.
void Sweep::forget_copies(State& state) {
  for (Held& home : state.homes) home.latest = false;
  state.staged.latest = false;
}

/// An op may write a storage only after every Store that reads it has completed.
Sweep::Found Sweep::write(std::uint32_t step, std::uint32_t position, Stay& stay) {
  for (InstanceId i = stay.first_store; i != kNone; i = next_[0][i]) {
    if (unrolled_.complete_at(i, unrolled_.op_start(step, position))) continue;
    return violation("store-overtaken", unrolled_.describe(i),
                     unrolled_.describe_position(step, position),
                     "the op writes the storage without waiting for the store that reads it");
  }
  stay.first_store = kNone;
  return std::nullopt;
}

Sweep::Found Sweep::prefetch(InstanceId instance) {
  const CacheOp& op = unrolled_.op(instance);
  const std::uint32_t s = op.storage.value();
  State& state = states_[s];
  const auto fail = [&](const char* rule, std::string second, std::string detail) {
    return violation(rule, unrolled_.describe(instance), std::move(second), std::move(detail));
  };
  if (state.stay != kNone) {
    return fail("already-resident", describe_stay(stays_[state.stay]),
                "the storage is still on the device");
  }
  if (!schedule_.storages[s].persistent) {
    const std::uint32_t last = last_position_[s];
    const Moment now = unrolled_.starts_after(instance);
    if (last == kNone || unrolled_.op_start(unrolled_.step(instance), last) <= now) {
      return fail("useless-prefetch", storage_name(s), "no later op of this step uses the storage");
    }
  }
  if (op.ddr_offset_bytes) {
    const HomeSlot slot{HomeTier::kLocalDdr, *op.ddr_offset_bytes};
    if (auto found = read_copy(instance, state.staged, slot)) return found;
  } else {
    // Any home may serve it, so each must be able to. That each was complete when the value left
    // the device follows: a Detach waits for all Stores of its stay, and no later stay begins here.
    for (std::uint8_t c = 0; c < copies_of(s); ++c) {
      if (auto found = read_copy(instance, state.homes[c], home_slot(s, c))) return found;
    }
  }
  return begin_stay(
      Stay{.storage = s, .prefetch = instance, .offset_bytes = op.device_offset_bytes});
}

std::uint8_t Sweep::copies_of(std::uint32_t storage) const {
  return second_home(schedule_, StorageIndex(storage)) ? 2 : 1;
}

HomeSlot Sweep::home_slot(std::uint32_t storage, std::uint8_t copy) const {
  return copy == 0 ? *schedule_.homes[storage] : *second_home(schedule_, StorageIndex(storage));
}

/// Checks that `slot` holds the whole latest value when `instance` reads it. Records the read: the
/// next owner of the slot must wait for it.
Sweep::Found Sweep::read_copy(InstanceId instance, Held& held, const HomeSlot& slot) {
  const auto fail = [&](const char* rule, std::string second, std::string detail) {
    return violation(rule, unrolled_.describe(instance), std::move(second), std::move(detail));
  };
  if (!held.latest) {
    return fail("stale-home", storage_name(unrolled_.op(instance).storage.value()),
                "the slot that it reads does not hold the latest value");
  }
  Copy& copy = copies_[held.copy];
  if (copy.slot != slot) {
    return fail("wrong-offset", describe_copy(copy),
                "it reads the slot at " + std::to_string(slot.offset_bytes) + "; the value is at " +
                    std::to_string(copy.slot.offset_bytes));
  }
  if (copy.overwritten) {
    return fail("stale-home", describe_copy(copy), "another storage has overwritten the slot");
  }
  if (copy.writer != kNone && !unrolled_.completes_before(copy.writer, instance)) {
    return fail("prefetch-races-store", unrolled_.describe(copy.writer),
                "it does not wait for the transfer that writes what it reads");
  }
  HO_CHECK(next_[copy.index][instance] == kNone);  // a transfer reads a slot once
  next_[copy.index][instance] = copy.first_reader;
  copy.first_reader = instance;
  return std::nullopt;
}

Sweep::Found Sweep::stage_in(InstanceId instance) {
  const CacheOp& op = unrolled_.op(instance);
  const std::uint32_t s = op.storage.value();
  State& state = states_[s];
  if (auto found = read_copy(instance, state.homes[0], *schedule_.homes[s])) return found;
  const HomeSlot slot{HomeTier::kLocalDdr, *op.ddr_offset_bytes};
  const Copy copy{.storage = s, .slot = slot, .writer = instance};
  return write_copy(state.staged, copy, unrolled_.starts_after(instance));
}

Sweep::Found Sweep::stage_out(InstanceId instance) {
  const CacheOp& op = unrolled_.op(instance);
  const std::uint32_t s = op.storage.value();
  State& state = states_[s];
  const HomeSlot slot{HomeTier::kLocalDdr, *op.ddr_offset_bytes};
  if (auto found = read_copy(instance, state.staged, slot)) return found;
  const Copy copy{.storage = s, .slot = *schedule_.homes[s], .writer = instance};
  return write_copy(state.homes[0], copy, unrolled_.starts_after(instance));
}

/// Finds the live stay that a Store or Detach refers to, and checks that its bytes have arrived.
Sweep::Found Sweep::check_resident(InstanceId instance, Stay*& stay) {
  const CacheOp& op = unrolled_.op(instance);
  const State& state = states_[op.storage.value()];
  if (state.stay == kNone) {
    return violation("not-resident", unrolled_.describe(instance), storage_name(op.storage.value()),
                     "the storage is not on the device at that time");
  }
  stay = &stays_[state.stay];
  if (rules_.offsets && stay->offset_bytes != op.device_offset_bytes) {
    return violation("wrong-offset", unrolled_.describe(instance), describe_stay(*stay),
                     "the storage is at " + std::to_string(stay->offset_bytes));
  }
  if (!stay->arrived && !unrolled_.completes_before(stay->prefetch, instance)) {
    return violation("prefetch-late", unrolled_.describe(instance),
                     unrolled_.describe(stay->prefetch),
                     "it does not wait for the prefetch of the storage");
  }
  return std::nullopt;
}

Sweep::Found Sweep::store(InstanceId instance) {
  Stay* stay = nullptr;
  if (auto found = check_resident(instance, stay)) return found;
  const CacheOp& op = unrolled_.op(instance);
  const std::uint32_t s = op.storage.value();
  HO_CHECK(next_[0][instance] == kNone);  // a transfer reads once
  next_[0][instance] = stay->first_store;
  stay->first_store = instance;
  Copy copy{.storage = s, .slot = {}, .writer = instance};
  if (op.ddr_offset_bytes) {
    copy.slot = {HomeTier::kLocalDdr, *op.ddr_offset_bytes};
  } else {
    copy.slot = home_slot(s, op.copy);
    copy.index = op.copy;
  }
  Held& held = op.ddr_offset_bytes ? states_[s].staged : states_[s].homes[op.copy];
  return write_copy(held, copy, unrolled_.starts_after(instance));
}

Sweep::Found Sweep::detach(InstanceId instance) {
  Stay* stay = nullptr;
  if (auto found = check_resident(instance, stay)) return found;
  for (InstanceId i = stay->first_store; i != kNone; i = next_[0][i]) {
    if (unrolled_.completes_before(i, instance)) continue;
    return violation("detach-before-store", unrolled_.describe(instance), unrolled_.describe(i),
                     "the bytes are released while the store may still read them");
  }
  HO_CHECK(stay->end == Stay::End::kLive);
  stay->end = Stay::End::kDetached;
  stay->detach = instance;
  states_[stay->storage].stay = kNone;
  if (rules_.host) live_.end_by(instance, unrolled_.complete_by(instance), bytes_of(*stay));
  return std::nullopt;
}

Sweep::Found Sweep::finish() const {
  for (std::uint32_t s = 0; s < schedule_.storages.size(); ++s) {
    if (!schedule_.storages[s].persistent) continue;
    const State& state = states_[s];
    for (std::uint8_t c = 0; c < copies_of(s); ++c) {
      const Held& home = state.homes[c];
      if (home.latest && !copies_[home.copy].overwritten) continue;
      return violation("lost-value", storage_name(s), "",
                       c == 0
                           ? "after the epilogue the home slot does not hold the latest value"
                           : "after the epilogue the second home does not hold the latest value");
    }
  }
  return std::nullopt;
}

/// Whether the old stay, and each transfer that uses it, ends before the next stay begins.
bool Sweep::stay_over(const Stay& old, const Stay& next) {
  const auto before_next = [&](InstanceId instance) {
    return next.prefetch != kNone ? unrolled_.completes_before(instance, next.prefetch)
                                  : unrolled_.complete_at(instance, next.begin);
  };
  switch (old.end) {
    case Stay::End::kLive: return false;
    case Stay::End::kDetached: return before_next(old.detach);
    case Stay::End::kDied: break;
  }
  // Its last op precedes: the walk reached `next` after the end of that op.
  for (InstanceId i = old.first_store; i != kNone; i = next_[0][i]) {
    if (!before_next(i)) return false;
  }
  return true;
}

Sweep::Found Sweep::begin_stay(const Stay& stay) {
  HO_CHECK(states_[stay.storage].stay == kNone && stay.end == Stay::End::kLive);
  const auto id = static_cast<std::uint32_t>(stays_.size());
  stays_.push_back(stay);
  states_[stay.storage].stay = id;
  if (rules_.host) {
    const std::uint32_t old = std::exchange(last_stay_[stay.storage], id);
    if (old != kNone && !stay_over(stays_[old], stay)) {
      return violation("stays-overlap", describe_stay(stays_[old]), describe_stay(stay),
                       "the job places a storage once at a time, and the first may not be over");
    }
  }
  if (!rules_.offsets) return take_live_bytes(stay);
  const std::uint64_t end_bytes = stay.offset_bytes + schedule_.storages[stay.storage].bytes;
  Found found;
  device_.take(stay.offset_bytes, end_bytes, id, [&](std::uint32_t old) {
    if (found || stay_over(stays_[old], stay)) return;
    found = violation("overlapping-device-bytes", describe_stay(stays_[old]), describe_stay(stay),
                      "the second uses bytes that the first may still use");
  });
  return found;
}

Sweep::Found Sweep::take_live_bytes(const Stay& stay) {
  const bool fetched = stay.prefetch != kNone;
  const std::uint64_t missing =
      live_.begin(bytes_of(stay), fetched ? unrolled_.starts_after(stay.prefetch) : stay.begin,
                  fetched ? unrolled_.waits_for(stay.prefetch) : std::vector<InstanceId>());
  if (missing == 0) return std::nullopt;
  return violation("live-bytes", describe_stay(stay), "",
                   "it may begin while the device is full: " + std::to_string(missing) +
                       " bytes are missing of " + std::to_string(schedule_.arena_bytes));
}

/// Every later step goes like one of those that were walked through, if one leaves as many bytes
/// free as the one before it, by the same events.
Sweep::Found Sweep::check_repeats() const {
  if (rules_.offsets) return std::nullopt;
  HO_CHECK(free_at_.size() == kSteps);
  const auto at_end = live_.free_at(unrolled_.finish(), unrolled_.first_of(kSteps));
  if (free_at_[1] == free_at_[2] || free_at_[2] == at_end) return std::nullopt;
  return violation("live-bytes", "steps", "",
                   "each leaves other bytes free than the one before it");
}

bool Sweep::copy_done(const Copy& old, const Copy& next, Moment moment) {
  const auto before_next = [&](InstanceId instance) {
    return next.writer != kNone ? unrolled_.completes_before(instance, next.writer)
                                : unrolled_.complete_at(instance, moment);
  };
  if (old.writer != kNone && !before_next(old.writer)) return false;
  for (InstanceId i = old.first_reader; i != kNone; i = next_[old.index][i]) {
    if (!before_next(i)) return false;
  }
  return true;
}

Sweep::Found Sweep::write_copy(Held& held, const Copy& copy, Moment moment) {
  const auto id = static_cast<std::uint32_t>(copies_.size());
  copies_.push_back(copy);
  held = {id, true};
  const std::uint64_t begin = home_address(copy.slot);
  Found found;
  home_.take(begin, begin + schedule_.storages[copy.storage].bytes, id, [&](std::uint32_t old) {
    copies_[old].overwritten = true;
    if (found || copy_done(copies_[old], copy, moment)) return;
    found = violation("overlapping-home-bytes", describe_copy(copies_[old]), describe_copy(copy),
                      "the second is written while the first may still be in use");
  });
  return found;
}

Violation Sweep::violation(const char* rule, std::string first, std::string second,
                           std::string detail) const {
  if (unrolled_.exhausted()) {
    return Violation{"too-complex", std::move(first), std::move(second),
                     "the search through the dependencies exceeded its limit"};
  }
  return Violation{rule, std::move(first), std::move(second), std::move(detail)};
}

std::string Sweep::storage_name(std::uint32_t storage) const {
  return describe(schedule_, StorageIndex(storage));
}

std::string Sweep::describe_stay(const Stay& stay) const {
  const std::string name = storage_name(stay.storage) + " at " + std::to_string(stay.offset_bytes);
  if (stay.prefetch != kNone) return name + ", brought by " + unrolled_.describe(stay.prefetch);
  const Moment since_step = (stay.begin - unrolled_.step_begin(0));
  const auto moments = static_cast<Moment>(2 * schedule_.positions.size() + 1);
  return name + ", written by " +
         unrolled_.describe_position(since_step / moments, (since_step % moments - 1) / 2);
}

std::string Sweep::describe_copy(const Copy& copy) const {
  const std::string name =
      std::string(home_tier_name(copy.slot.tier)) + " copy of " + storage_name(copy.storage);
  if (copy.writer == kNone) return name + ", written by the job";
  return name + ", written by " + unrolled_.describe(copy.writer);
}

}  // namespace ho::schedule::proof
