#include "common/schedule/schedule.hpp"

namespace ho::schedule {

std::string_view home_tier_name(HomeTier tier) {
  switch (tier) {
    case HomeTier::kLocalDdr: return "local_ddr";
    case HomeTier::kRemoteDdr: return "remote_ddr";
    case HomeTier::kFlash: return "flash";
  }
  return "unknown";
}

std::string_view cache_op_kind_name(CacheOpKind kind) {
  switch (kind) {
    case CacheOpKind::kPrefetch: return "prefetch";
    case CacheOpKind::kStore: return "store";
    case CacheOpKind::kDetach: return "detach";
    case CacheOpKind::kStageIn: return "stage_in";
    case CacheOpKind::kStageOut: return "stage_out";
  }
  return "unknown";
}

bool moves_toward_device(CacheOpKind kind) {
  return kind == CacheOpKind::kPrefetch || kind == CacheOpKind::kStageIn;
}

std::optional<HomeSlot> second_home(const Schedule& schedule, StorageIndex storage) {
  if (schedule.second_homes.empty()) return std::nullopt;
  return schedule.second_homes[storage.value()];
}

HomeTier transfer_tier(const Schedule& schedule, const CacheOp& op) {
  if (op.kind == CacheOpKind::kStageIn || op.kind == CacheOpKind::kStageOut) {
    return HomeTier::kFlash;
  }
  if (op.ddr_offset_bytes) return HomeTier::kLocalDdr;
  const auto home =
      op.copy == 0 ? schedule.homes[op.storage.value()] : second_home(schedule, op.storage);
  return home ? home->tier : HomeTier::kLocalDdr;
}

}  // namespace ho::schedule
