// What a plan has in the pool at least: no job waits for what its pool can never have.
#include <algorithm>
#include <cstdint>

#include "client/runtime/homes/home_layout.hpp"
#include "client/runtime/plan.hpp"
#include "common/base/units.hpp"
#include "proto/files/convert.hpp"

namespace ho::client {

Pool::Need Plan::need_of(std::span<const std::byte> encoded) {
  Pool::Need need;
  const auto schedule = decode_schedule(encoded);
  if (!schedule) return need;
  schedule::Schedule rest = *schedule;
  const OwnHomes own = take_out_own_homes(rest);
  // Staging slots, and homes of what does not outlive a step; on flash those that do lie in front.
  need.ddr_bytes = rest.local_ddr_bytes + rest.remote_ddr_bytes;
  need.flash_bytes = rest.flash_bytes;
  for (const StorageIndex index : own.flash) {
    need.flash_whole_bytes =
        std::max(need.flash_whole_bytes, schedule->storages[index.value()].bytes);
  }
  for (const StorageIndex index : own.ddr) {
    const Storage& storage = schedule->storages[index.value()];
    const bool input = !storage.persistent && storage.kind == StorageKind::kInput;
    const std::uint64_t bytes = align_up(storage.bytes, HomeHeap::kAlign) * (input ? 2 : 1);
    const bool doubled = schedule::second_home(*schedule, index).has_value();
    need.ddr_bytes += doubled ? 2 * bytes : bytes;
    if (doubled) need.ddr_whole_bytes = std::max(need.ddr_whole_bytes, bytes);
  }
  return need;
}

}  // namespace ho::client
