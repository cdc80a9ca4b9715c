#include "client/runtime/homes/home_layout.hpp"

#include <algorithm>
#include <functional>

#include "client/pool/placement/flash_homes.hpp"
#include "common/base/check.hpp"
#include "common/base/units.hpp"

namespace ho::client {
namespace {

using schedule::CacheOp;
using schedule::HomeTier;
using schedule::Schedule;

/// A range of an arena that stays there, and what says where it begins.
struct Range {
  std::uint64_t bytes = 0;
  std::uint64_t* begin = nullptr;
};

/// Moves ranges down, in order, without the unused bytes between them. Ranges that meet
/// move as a piece, by a multiple of kFlashAlign. @param from  the first byte that may be used.
/// @return the end of the last one.
std::uint64_t close_gaps(std::vector<Range>& ranges, std::uint64_t from) {
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return *a.begin < *b.begin; });
  std::uint64_t old_end = 0;
  std::uint64_t end = from;
  std::uint64_t to = 0;    // where the piece begins, and
  std::uint64_t base = 0;  // where it began
  for (const Range& range : ranges) {
    if (&range == &ranges.front() || *range.begin >= old_end) {
      base = *range.begin;
      const std::uint64_t phase = base % kFlashAlign;
      to = align_up(end - std::min(end, phase), kFlashAlign) + phase;
      HO_CHECK(to >= end);
      old_end = base;
    }
    old_end = std::max(old_end, *range.begin + range.bytes);
    *range.begin = to + (*range.begin - base);
    end = std::max(end, *range.begin + range.bytes);
  }
  return end;
}

bool is_own(const Storage& storage) {
  return storage.persistent || storage.kind == StorageKind::kInput;
}

}  // namespace

OwnHomes take_out_own_homes(Schedule& schedule) {
  OwnHomes own;
  std::vector<Range> local;
  std::vector<Range> remote;
  std::vector<Range> flash;
  std::uint64_t flash_front = 0;
  for (std::uint32_t s = 0; s < schedule.storages.size(); ++s) {
    const Storage& storage = schedule.storages[s];
    auto& home = schedule.homes[s];
    if (!home) continue;
    if (home->tier == HomeTier::kFlash && is_own(storage)) {
      own.flash.push_back(StorageIndex(s));
      home->offset_bytes = flash_front;
      flash_front = align_up(flash_front + storage.bytes, kFlashAlign);
    } else if (home->tier == HomeTier::kFlash) {
      flash.push_back({storage.bytes, &home->offset_bytes});
    } else if (is_own(storage) || schedule::second_home(schedule, StorageIndex(s))) {
      own.ddr.push_back(StorageIndex(s));
    } else {
      (home->tier == HomeTier::kRemoteDdr ? remote : local)
          .push_back({storage.bytes, &home->offset_bytes});
    }
  }
  for (auto* list : {&schedule.cache_ops, &schedule.prologue, &schedule.epilogue}) {
    for (CacheOp& op : *list) {
      if (!op.ddr_offset_bytes) continue;
      local.push_back({schedule.storages[op.storage.value()].bytes, &*op.ddr_offset_bytes});
    }
  }
  schedule.local_ddr_bytes = close_gaps(local, 0);
  schedule.remote_ddr_bytes = close_gaps(remote, 0);
  schedule.flash_bytes = close_gaps(flash, flash_front);
  for (const StorageIndex storage : own.ddr) schedule.homes[storage.value()].reset();
  schedule.second_homes.clear();
  return own;
}

}  // namespace ho::client
