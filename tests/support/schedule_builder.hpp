#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "common/base/units.hpp"
#include "common/schedule/schedule.hpp"

namespace ho::test {

/// Builds small schedules in few words. Indices follow the order of additions. finish() sets the
/// arena sizes.
class ScheduleBuilder {
 public:
  struct Kind {
    StorageKind kind = StorageKind::kActivation;
    bool persistent = false;
    bool pinned = false;
  };
  static constexpr Kind kActivation{StorageKind::kActivation, false, false};
  static constexpr Kind kWeight{StorageKind::kWeight, true, false};
  static constexpr Kind kPinned{StorageKind::kWeight, true, true};
  static constexpr Kind kInput{StorageKind::kInput, false, false};
  static constexpr Kind kWorkspace{StorageKind::kWorkspace, false, false};
  static constexpr std::uint64_t kNoHome = UINT64_MAX;

  ScheduleBuilder() {
    value_.graph_name = "built";
    value_.hardware.name = "test";
    value_.hardware.local_ddr = TierSpec{kGiB, {1'000'000'000, 1000}, {1'000'000'000, 1000}};
    value_.hardware.remote_ddr = value_.hardware.local_ddr;
  }

  StorageIndex storage(std::string name, std::uint64_t bytes, Kind kind,
                       std::uint64_t home_offset_bytes = kNoHome) {
    const auto index = static_cast<std::uint32_t>(value_.storages.size());
    value_.storages.push_back(
        Storage{index + 100, std::move(name), bytes, kind.kind, kind.persistent, kind.pinned});
    value_.homes.emplace_back();
    if (home_offset_bytes != kNoHome) {
      value_.homes.back() = schedule::HomeSlot{schedule::HomeTier::kLocalDdr, home_offset_bytes};
    }
    return StorageIndex(index);
  }

  static schedule::Operand read(StorageIndex storage, std::uint64_t offset_bytes) {
    return {storage, schedule::Access::kRead, offset_bytes};
  }
  static schedule::Operand write(StorageIndex storage, std::uint64_t offset_bytes) {
    return {storage, schedule::Access::kWrite, offset_bytes};
  }
  static schedule::Operand update(StorageIndex storage, std::uint64_t offset_bytes) {
    return {storage, schedule::Access::kReadWrite, offset_bytes};
  }

  /// Adds a new op at the next position.
  schedule::Position op(std::initializer_list<schedule::Operand> operands) {
    const auto index = static_cast<std::uint32_t>(value_.ops.size());
    value_.ops.push_back(
        schedule::OpInfo{index + 10, "op" + std::to_string(index), 1000, "", false, false});
    return at(OpIndex(index), operands);
  }
  /// Adds an existing op at the next position.
  schedule::Position at(OpIndex op, std::initializer_list<schedule::Operand> operands) {
    const auto position = static_cast<std::uint32_t>(value_.positions.size());
    value_.positions.push_back(schedule::ScheduledOp{op, operands});
    return schedule::Position(position);
  }

  /// What a cache op waits for, and which position waits for it.
  struct Order {
    int after = -1;   ///< position; -1: the begin of the step
    int before = -1;  ///< position; -1: none
    bool next_step = false;
    std::vector<schedule::CacheOpRef> after_cache_ops{};
  };
  static schedule::CacheOpRef same(std::uint32_t index) {
    return {schedule::CacheOpIndex(index), false};
  }
  static schedule::CacheOpRef previous(std::uint32_t index) {
    return {schedule::CacheOpIndex(index), true};
  }

  std::uint32_t prefetch(StorageIndex s, std::uint64_t offset_bytes, Order order) {
    return add(value_.cache_ops, schedule::CacheOpKind::kPrefetch, s, offset_bytes, order);
  }
  std::uint32_t store(StorageIndex s, std::uint64_t offset_bytes, Order order) {
    return add(value_.cache_ops, schedule::CacheOpKind::kStore, s, offset_bytes, order);
  }
  std::uint32_t detach(StorageIndex s, std::uint64_t offset_bytes, Order order) {
    return add(value_.cache_ops, schedule::CacheOpKind::kDetach, s, offset_bytes, order);
  }
  std::uint32_t prologue(StorageIndex s, std::uint64_t offset_bytes, Order order) {
    return add(value_.prologue, schedule::CacheOpKind::kPrefetch, s, offset_bytes, order);
  }
  std::uint32_t epilogue(StorageIndex s, std::uint64_t offset_bytes, Order order) {
    return add(value_.epilogue, schedule::CacheOpKind::kStore, s, offset_bytes, order);
  }

  [[nodiscard]] schedule::Schedule finish() {
    std::uint64_t arena = 0;
    const auto place = [&](StorageIndex s, std::uint64_t offset_bytes) {
      arena = std::max(arena, offset_bytes + value_.storages[s.value()].bytes);
    };
    for (const auto& position : value_.positions) {
      for (const auto& operand : position.operands) {
        place(operand.storage, operand.device_offset_bytes);
      }
    }
    for (const auto* list : {&value_.cache_ops, &value_.prologue, &value_.epilogue}) {
      for (const auto& op : *list) place(op.storage, op.device_offset_bytes);
    }
    value_.arena_bytes = arena;
    value_.device_budget_bytes = arena;
    for (std::size_t s = 0; s < value_.storages.size(); ++s) {
      if (!value_.homes[s]) continue;
      value_.local_ddr_bytes = std::max(value_.local_ddr_bytes,
                                        value_.homes[s]->offset_bytes + value_.storages[s].bytes);
    }
    return value_;
  }

 private:
  std::uint32_t add(std::vector<schedule::CacheOp>& list, schedule::CacheOpKind kind,
                    StorageIndex s, std::uint64_t offset_bytes, const Order& order) {
    schedule::CacheOp op;
    op.kind = kind;
    op.storage = s;
    op.range_end_bytes = value_.storages[s.value()].bytes;
    op.device_offset_bytes = offset_bytes;
    if (order.after >= 0) {
      op.after_position = schedule::Position(static_cast<std::uint32_t>(order.after));
    }
    if (order.before >= 0) {
      op.before_position = schedule::Position(static_cast<std::uint32_t>(order.before));
    }
    op.before_next_step = order.next_step;
    op.after_cache_ops = order.after_cache_ops;
    list.push_back(std::move(op));
    return static_cast<std::uint32_t>(list.size() - 1);
  }

  schedule::Schedule value_;
};

}  // namespace ho::test
