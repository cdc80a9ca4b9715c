#include "common/schedule/print.hpp"

#include <cstddef>
#include <vector>

#include "common/schedule/describe.hpp"

namespace ho::schedule {

namespace {

std::string number(std::uint64_t value) { return std::to_string(value); }

/// `[512, 640)`
std::string bytes_at(const Schedule& schedule, StorageIndex storage, std::uint64_t offset_bytes) {
  const std::uint64_t bytes = schedule.storages[storage.value()].bytes;
  return "[" + number(offset_bytes) + ", " + number(offset_bytes + bytes) + ")";
}

void print_storage(const Schedule& schedule, std::size_t index, std::string& out) {
  const Storage& storage = schedule.storages[index];
  const StorageIndex storage_index(static_cast<std::uint32_t>(index));
  out += describe(schedule, storage_index) + ": " + number(storage.bytes) + " bytes ";
  out += storage_kind_name(storage.kind);
  if (storage.persistent) out += " persistent";
  if (storage.pinned) out += " pinned";
  if (const auto& home = schedule.homes[index]) {
    out += ", home " + std::string(home_tier_name(home->tier)) + " " +
           bytes_at(schedule, storage_index, home->offset_bytes);
  }
  if (const auto second = second_home(schedule, storage_index)) {
    out += ", second home " + std::string(home_tier_name(second->tier)) + " " +
           bytes_at(schedule, storage_index, second->offset_bytes);
  }
  out += '\n';
}

void print_position(const Schedule& schedule, std::uint32_t index, std::string& out) {
  out += describe(schedule, Position(index));
  const char* separator = ": ";
  for (const Operand& operand : schedule.positions[index].operands) {
    out += separator;
    separator = ", ";
    switch (operand.access) {
      case Access::kRead: out += "reads "; break;
      case Access::kWrite: out += "writes "; break;
      case Access::kReadWrite: out += "updates "; break;
    }
    out += describe(schedule, operand.storage) + " at " +
           bytes_at(schedule, operand.storage, operand.device_offset_bytes);
  }
  out += '\n';
}

void print_cache_op(const Schedule& schedule, CacheOpList list, std::size_t index,
                    const CacheOp& op, std::string& out) {
  out += "  " + describe(schedule, list, index);
  if (op.kind != CacheOpKind::kStageIn && op.kind != CacheOpKind::kStageOut) {
    out += " at " + bytes_at(schedule, op.storage, op.device_offset_bytes);
  }
  if (op.ddr_offset_bytes) {
    out += ", staged at " + bytes_at(schedule, op.storage, *op.ddr_offset_bytes);
  }
  const char* separator = "; after ";
  for (const CacheOpRef& ref : op.after_cache_ops) {
    out += separator + ("[" + number(ref.op.value()) + "]");
    if (ref.previous_step) out += " of the previous step";
    separator = ", ";
  }
  if (op.before_position) {
    out += "; before position " + number(op.before_position->value());
    if (op.before_next_step) out += " of the next step";
  }
  out += '\n';
}

}  // namespace

std::string print(const Schedule& schedule) {
  std::string out = "schedule of graph \"" + schedule.graph_name + "\": arena " +
                    number(schedule.arena_bytes) + " of " + number(schedule.device_budget_bytes) +
                    " bytes, local_ddr " + number(schedule.local_ddr_bytes) + ", remote_ddr " +
                    number(schedule.remote_ddr_bytes) + ", flash " + number(schedule.flash_bytes) +
                    '\n';
  for (std::size_t s = 0; s < schedule.storages.size(); ++s) print_storage(schedule, s, out);
  out += "prologue\n";
  for (std::size_t i = 0; i < schedule.prologue.size(); ++i) {
    print_cache_op(schedule, CacheOpList::kPrologue, i, schedule.prologue[i], out);
  }
  // One list per position; the last list holds the cache ops that start when the step begins.
  std::vector<std::vector<std::size_t>> after(schedule.positions.size() + 1);
  for (std::size_t i = 0; i < schedule.cache_ops.size(); ++i) {
    const auto& position = schedule.cache_ops[i].after_position;
    after[position ? position->value() : schedule.positions.size()].push_back(i);
  }
  const auto print_after = [&](std::size_t key) {
    for (const std::size_t i : after[key]) {
      print_cache_op(schedule, CacheOpList::kSteady, i, schedule.cache_ops[i], out);
    }
  };
  out += "step\n";
  print_after(schedule.positions.size());
  for (std::uint32_t p = 0; p < schedule.positions.size(); ++p) {
    print_position(schedule, p, out);
    print_after(p);
  }
  out += "epilogue\n";
  for (std::size_t i = 0; i < schedule.epilogue.size(); ++i) {
    print_cache_op(schedule, CacheOpList::kEpilogue, i, schedule.epilogue[i], out);
  }
  return out;
}

}  // namespace ho::schedule
