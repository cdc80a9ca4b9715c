#include "mutation.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "common/schedule/validate.hpp"
#include "execution.hpp"

namespace ho::test {

using schedule::CacheOp;
using schedule::CacheOpIndex;
using schedule::CacheOpKind;
using schedule::HomeTier;
using schedule::Position;
using schedule::Schedule;

namespace {

constexpr std::uint64_t kShiftBytes = 64;

std::uint64_t moved(std::uint64_t offset_bytes, Prng& prng) {
  const std::uint64_t by = kShiftBytes * (1 + prng.below(4));
  return prng.below(2) == 0 && offset_bytes >= by ? offset_bytes - by : offset_bytes + by;
}

/// Moves a storage at every place that names it, so that only overlaps can be wrong afterwards.
void move_storage(Schedule& schedule, StorageIndex storage, Prng& prng) {
  const std::uint64_t to = kShiftBytes * prng.below(schedule.arena_bytes / kShiftBytes);
  const std::uint32_t from_position =
      static_cast<std::uint32_t>(prng.below(schedule.positions.size()));
  for (std::uint32_t p = from_position; p < schedule.positions.size(); ++p) {
    for (auto& operand : schedule.positions[p].operands) {
      if (operand.storage == storage) operand.device_offset_bytes = to;
    }
  }
  for (auto* list : {&schedule.cache_ops, &schedule.prologue, &schedule.epilogue}) {
    for (CacheOp& op : *list) {
      if (op.storage == storage && prng.below(4) != 0) op.device_offset_bytes = to;
    }
  }
}

void remove_cache_op(Schedule& schedule, std::size_t index) {
  schedule.cache_ops.erase(schedule.cache_ops.begin() + static_cast<std::ptrdiff_t>(index));
  for (CacheOp& op : schedule.cache_ops) {
    auto& refs = op.after_cache_ops;
    refs.erase(std::remove_if(refs.begin(), refs.end(),
                              [&](const auto& ref) { return ref.op.value() == index; }),
               refs.end());
    for (auto& ref : refs) {
      if (ref.op.value() > index) ref.op = CacheOpIndex(ref.op.value() - 1);
    }
  }
}

void change_bound(std::optional<Position>& bound, const Schedule& schedule, Prng& prng) {
  if (prng.below(3) == 0) {
    bound.reset();
  } else {
    bound = Position(static_cast<std::uint32_t>(prng.below(schedule.positions.size())));
  }
}

}  // namespace

void mutate(Schedule& schedule, Prng& prng) {
  if (schedule.cache_ops.empty()) return;
  const std::size_t index = prng.below(schedule.cache_ops.size());
  CacheOp& op = schedule.cache_ops[index];
  const StorageIndex storage(static_cast<std::uint32_t>(prng.below(schedule.storages.size())));
  switch (prng.below(schedule.second_homes.empty() ? 16 : 18)) {
    case 0:
      if (!op.after_cache_ops.empty()) op.after_cache_ops.pop_back();
      break;
    case 1: change_bound(op.after_position, schedule, prng); break;
    case 2: change_bound(op.before_position, schedule, prng); break;
    case 3: op.before_next_step = !op.before_next_step; break;
    case 4: op.device_offset_bytes = moved(op.device_offset_bytes, prng); break;
    case 5: move_storage(schedule, storage, prng); break;
    case 6:
      if (auto& home = schedule.homes[storage.value()]) {
        home->offset_bytes = moved(home->offset_bytes, prng);
      }
      break;
    case 7: remove_cache_op(schedule, index); break;
    case 8:
      std::swap(op.storage, schedule.cache_ops[prng.below(schedule.cache_ops.size())].storage);
      break;
    case 9: op.kind = static_cast<CacheOpKind>(1 + prng.below(5)); break;
    case 10:
      std::swap(schedule.positions[prng.below(schedule.positions.size())],
                schedule.positions[prng.below(schedule.positions.size())]);
      break;
    case 11:
      if (!op.after_cache_ops.empty()) {
        auto& ref = op.after_cache_ops.front();
        ref.previous_step = !ref.previous_step;
      }
      break;
    case 12:
      op.after_cache_ops.push_back(
          {CacheOpIndex(static_cast<std::uint32_t>(prng.below(schedule.cache_ops.size()))),
           prng.below(2) == 0});
      break;
    case 13:
      if (!schedule.prologue.empty() && prng.below(2) == 0)
        schedule.prologue.pop_back();
      else if (!schedule.epilogue.empty())
        schedule.epilogue.pop_back();
      break;
    case 14:
      if (op.ddr_offset_bytes) op.ddr_offset_bytes = moved(*op.ddr_offset_bytes, prng);
      break;
    case 15: {
      auto& operands = schedule.positions[prng.below(schedule.positions.size())].operands;
      if (!operands.empty()) {
        operands[prng.below(operands.size())].access =
            static_cast<schedule::Access>(1 + prng.below(3));
      }
      break;
    }
    case 16: op.copy = 1 - op.copy; break;
    case 17:
      if (auto& home = schedule.second_homes[storage.value()]) {
        home->offset_bytes = moved(home->offset_bytes, prng);
      }
      break;
  }
}

void repair(Schedule& schedule) {
  for (auto* list : {&schedule.cache_ops, &schedule.prologue, &schedule.epilogue}) {
    for (CacheOp& op : *list) {
      op.range_end_bytes = schedule.storages[op.storage.value()].bytes;
      schedule.arena_bytes =
          std::max(schedule.arena_bytes, op.device_offset_bytes + op.range_end_bytes);
      const auto& home = schedule.homes[op.storage.value()];
      if (!home || home->tier != HomeTier::kFlash || op.kind == CacheOpKind::kDetach) {
        op.ddr_offset_bytes.reset();
        continue;
      }
      if (!op.ddr_offset_bytes) op.ddr_offset_bytes = 0;
      schedule.local_ddr_bytes =
          std::max(schedule.local_ddr_bytes, *op.ddr_offset_bytes + op.range_end_bytes);
    }
  }
  for (const auto& position : schedule.positions) {
    for (const auto& operand : position.operands) {
      schedule.arena_bytes =
          std::max(schedule.arena_bytes,
                   operand.device_offset_bytes + schedule.storages[operand.storage.value()].bytes);
    }
  }
  schedule.device_budget_bytes = schedule.arena_bytes;
  for (std::size_t s = 0; s < schedule.homes.size(); ++s) {
    if (!schedule.homes[s]) continue;
    const auto& home = *schedule.homes[s];
    auto& arena = home.tier == HomeTier::kFlash ? schedule.flash_bytes : schedule.local_ddr_bytes;
    arena = std::max(arena, home.offset_bytes + schedule.storages[s].bytes);
  }
  for (std::size_t s = 0; s < schedule.second_homes.size(); ++s) {
    if (!schedule.second_homes[s]) continue;
    schedule.local_ddr_bytes =
        std::max(schedule.local_ddr_bytes,
                 schedule.second_homes[s]->offset_bytes + schedule.storages[s].bytes);
  }
  auto& hardware = schedule.hardware;
  hardware.local_ddr->capacity_bytes =
      std::max(hardware.local_ddr->capacity_bytes, schedule.local_ddr_bytes);
  if (hardware.flash) {
    hardware.flash->capacity_bytes = std::max(hardware.flash->capacity_bytes, schedule.flash_bytes);
  }
}

MutantCount check_mutants(const Schedule& legal, std::uint64_t mutants, std::uint64_t seed,
                          schedule::Placement placement) {
  Prng prng(seed);
  MutantCount count;
  for (std::uint64_t m = 0; m < mutants && count.fault.empty(); ++m) {
    Schedule mutant = legal;
    const std::uint64_t changes = 1 + prng.below(3);
    for (std::uint64_t c = 0; c < changes; ++c) mutate(mutant, prng);
    repair(mutant);
    // Tight: so that live bytes matter.
    if (placement == schedule::Placement::kByHost) mutant.arena_bytes = legal.arena_bytes;
    if (schedule::validate(mutant, placement)) {
      ++count.refused;
      continue;
    }
    ++count.accepted;
    constexpr std::uint32_t kRuns = 12;
    for (std::uint32_t run = 0; run < kRuns; ++run) {
      const std::uint64_t run_seed = prng.next();
      const std::string fault = execute(mutant, 1 + run % 4, run_seed, placement);
      if (fault.empty()) continue;
      count.fault = "seed " + std::to_string(seed) + ", mutant " + std::to_string(m) +
                    ", run seed " + std::to_string(run_seed) + ": " + fault;
    }
  }
  return count;
}

}  // namespace ho::test
