#include "common/schedule/check_structure.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "common/model/check_graph.hpp"

namespace ho::schedule {

namespace {

/// At most 2^30 elements per list: indices, and the counts after unrolling, fit 32 bits.
constexpr std::size_t kCountMax = std::size_t{1} << 30U;
/// An alignment beyond a huge page makes no sense.
constexpr std::uint64_t kAlignBytesMax = std::uint64_t{1} << 30U;

Error broken(std::string reason) { return Error(Errc::kCorrupt, std::move(reason)); }

std::string element(const char* list, std::size_t index) {
  return std::string(list) + "[" + std::to_string(index) + "]";
}

Result<void> check_header(const Schedule& schedule) {
  if (schedule.format_version != kFormatVersion) {
    return Error(Errc::kUnsupported, "format version " + std::to_string(schedule.format_version) +
                                         "; this program reads version " +
                                         std::to_string(kFormatVersion));
  }
  const std::pair<const char*, std::uint64_t> sizes[] = {
      {"device_budget_bytes", schedule.device_budget_bytes},
      {"arena_bytes", schedule.arena_bytes},
      {"local_ddr_bytes", schedule.local_ddr_bytes},
      {"remote_ddr_bytes", schedule.remote_ddr_bytes},
      {"flash_bytes", schedule.flash_bytes}};
  for (const auto& [name, bytes] : sizes) {
    if (bytes > kBytesMax) return broken(std::string(name) + ": more than 2^50");
  }
  if (!std::has_single_bit(schedule.align_bytes) || schedule.align_bytes > kAlignBytesMax) {
    return broken("align_bytes: not a power of two up to 2^30");
  }
  if (schedule.storages.size() > kCountMax || schedule.ops.size() > kCountMax ||
      schedule.positions.size() > kCountMax || schedule.cache_ops.size() > kCountMax ||
      schedule.prologue.size() > kCountMax || schedule.epilogue.size() > kCountMax) {
    return broken("a list has more than 2^30 elements");
  }
  if (auto checked = check_hardware(schedule.hardware); !checked) {
    return broken("hardware: " + checked.error().context());
  }
  return {};
}

Result<void> check_home(const std::optional<HomeSlot>& home, const std::string& name) {
  if (!home) return {};
  if (home->tier < HomeTier::kLocalDdr || home->tier > HomeTier::kFlash) {
    return broken(name + ".tier: not known");
  }
  if (home->offset_bytes > kBytesMax) return broken(name + ".offset_bytes: more than 2^50");
  return {};
}

Result<void> check_storages(const Schedule& schedule) {
  if (schedule.homes.size() != schedule.storages.size()) {
    return broken("homes: must have one element per storage");
  }
  if (!schedule.second_homes.empty() && schedule.second_homes.size() != schedule.storages.size()) {
    return broken("second_homes: must have one element per storage, or none");
  }
  for (std::size_t s = 0; s < schedule.storages.size(); ++s) {
    const Storage& storage = schedule.storages[s];
    if (storage.bytes == 0 || storage.bytes > kBytesMax) {
      return broken(element("storages", s) + ".bytes: 0 or more than 2^50");
    }
    if (storage.kind > kStorageKindLast) {
      return broken(element("storages", s) + ".kind: not known");
    }
    if (storage.copies > kCopiesMax) {
      return broken(element("storages", s) + ".copies: more than " + std::to_string(kCopiesMax));
    }
    if (auto ok = check_home(schedule.homes[s], element("homes", s)); !ok) return ok;
    if (schedule.second_homes.empty()) continue;
    if (auto ok = check_home(schedule.second_homes[s], element("second_homes", s)); !ok) return ok;
  }
  return {};
}

Result<void> check_positions(const Schedule& schedule) {
  std::uint64_t duration_ns = 0;
  for (std::size_t i = 0; i < schedule.ops.size(); ++i) {
    if (schedule.ops[i].duration_ns > kDurationNsMax) {
      return broken(element("ops", i) + ".duration_ns: more than 2^62");
    }
    for (const OpIndex before : schedule.ops[i].after) {
      if (before.value() >= i) return broken(element("ops", i) + ".after: must name an earlier op");
    }
  }
  for (std::size_t p = 0; p < schedule.positions.size(); ++p) {
    const ScheduledOp& position = schedule.positions[p];
    const std::string name = element("positions", p);
    if (position.op.value() >= schedule.ops.size()) return broken(name + ".op: out of range");
    duration_ns += schedule.ops[position.op.value()].duration_ns;
    if (duration_ns > kDurationNsMax) return broken("ops: durations sum to more than 2^62");
    for (const Operand& operand : position.operands) {
      if (operand.storage.value() >= schedule.storages.size()) {
        return broken(name + ".operands: storage out of range");
      }
      if (operand.access < Access::kRead || operand.access > Access::kReadWrite) {
        return broken(name + ".operands: access not known");
      }
      if (operand.device_offset_bytes > kBytesMax) {
        return broken(name + ".operands: device offset more than 2^50");
      }
    }
  }
  return {};
}

Result<void> check_cache_op(const Schedule& schedule, const CacheOp& op, std::size_t list_size) {
  if (op.kind < CacheOpKind::kPrefetch || op.kind > CacheOpKind::kStageOut) {
    return broken("kind: not known");
  }
  if (op.storage.value() >= schedule.storages.size()) return broken("storage: out of range");
  if (op.range_begin_bytes > op.range_end_bytes ||
      op.range_end_bytes > schedule.storages[op.storage.value()].bytes) {
    return broken("range: not within the storage");
  }
  if (op.device_offset_bytes > kBytesMax) return broken("device_offset_bytes: more than 2^50");
  if (op.ddr_offset_bytes.value_or(0) > kBytesMax) {
    return broken("ddr_offset_bytes: more than 2^50");
  }
  if (op.copy >= kCopiesMax) return broken("copy: out of range");
  const std::size_t positions = schedule.positions.size();
  if (op.after_position && op.after_position->value() >= positions) {
    return broken("after_position: out of range");
  }
  if (op.before_position && op.before_position->value() >= positions) {
    return broken("before_position: out of range");
  }
  for (const CacheOpRef& ref : op.after_cache_ops) {
    if (ref.op.value() >= list_size) return broken("after_cache_ops: out of range");
  }
  return {};
}

Result<void> check_cache_ops(const Schedule& schedule, const std::vector<CacheOp>& list,
                             const char* name) {
  for (std::size_t i = 0; i < list.size(); ++i) {
    auto checked = check_cache_op(schedule, list[i], list.size());
    if (!checked) return checked.error().at(element(name, i));
  }
  return {};
}

}  // namespace

Result<void> check_structure(const Schedule& schedule) {
  if (auto checked = check_header(schedule); !checked) return checked;
  if (auto checked = check_storages(schedule); !checked) return checked;
  if (auto checked = check_positions(schedule); !checked) return checked;
  if (auto checked = check_cache_ops(schedule, schedule.cache_ops, "cache_ops"); !checked) {
    return checked;
  }
  if (auto checked = check_cache_ops(schedule, schedule.prologue, "prologue"); !checked) {
    return checked;
  }
  if (auto checked = check_cache_ops(schedule, schedule.epilogue, "epilogue"); !checked) {
    return checked;
  }
  const std::size_t predicted = schedule.prediction.op_start_ns.size();
  if (predicted != 0 && predicted != schedule.positions.size()) {
    return broken("prediction.op_start_ns: must have one element per position");
  }
  for (const Explanation& explanation : schedule.explanations) {
    if (explanation.storage.value() >= schedule.storages.size()) {
      return broken("explanations: storage out of range");
    }
  }
  return {};
}

}  // namespace ho::schedule
