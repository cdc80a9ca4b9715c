#include "daemon/tier/flash/store/store_path.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "common/base/check.hpp"
#include "common/base/units.hpp"

namespace ho::flash {

StorePath::StorePath(Device& device, Volume&& recovered, const Journal::Options& options,
                     std::uint64_t write_bytes_per_day_max)
    : volume(std::move(recovered)),
      journal(device, volume, options),
      budget(write_bytes_per_day_max) {
  for (const auto& [id, shard] : volume.table.shards()) {
    if (shard.info.policy == Policy::kDurable) count_durable(shard);
  }
}

Wear StorePath::wear_today() const {
  Wear wear = volume.wear;
  if (wear.day < day_) {
    wear.day = day_;
    wear.day_bytes = 0;
  }
  return wear;
}

Result<void> StorePath::check_budget(const WriteNeed& need) const {
  LogFill log;
  log.area_bytes = volume.geometry.area_bytes;
  log.frame_bytes_max = volume.geometry.frame_bytes_max();
  log.head_bytes = volume.head_bytes;
  log.table_bytes =
      Table::snapshot_frames_bytes(durable_extents_, durable_blocks_, log.frame_bytes_max);
  log.begins_log = journal.begins_log();
  const auto checked = budget.check(need, wear_today().day_bytes, log);
  if (!checked) return checked.error().at(volume.name);
  return {};
}

Result<void> StorePath::check_room(Policy policy, std::uint64_t blocks) const {
  if (blocks > volume.space.free_blocks()) {
    // An extent may ask for more blocks than 64 bits count bytes of.
    const std::uint64_t counted = std::min(blocks, UINT64_MAX / kBlockBytes);
    return Error(Errc::kExhausted,
                 volume.name + ": full: " + format_bytes(counted * kBlockBytes) + " wanted, " +
                     format_bytes(std::uint64_t{volume.space.free_blocks()} * kBlockBytes) +
                     " free");
  }
  if (policy == Policy::kScratch || blocks == 0) return {};
  if (journal.broken()) {
    return Error(Errc::kIo, volume.name + ": takes no durable extent: " + journal.broken_why());
  }
  const std::uint64_t snapshot =
      Table::snapshot_bytes(durable_extents_ + 1, durable_blocks_ + blocks);
  if (snapshot > volume.geometry.snapshot_bytes_max()) {
    return Error(Errc::kExhausted,
                 volume.name + ": its log has no room for another durable extent");
  }
  return {};
}

Shard& StorePath::make_shard(const ExtentInfo& info, std::uint64_t blocks) {
  HO_CHECK(blocks > 0 && blocks <= volume.space.free_blocks());
  Shard shard;
  shard.info = info;
  shard.sums.assign(blocks, 0);
  shard.physical.reserve(blocks);
  while (shard.physical.size() < blocks) {
    const auto run = volume.space.take(static_cast<std::uint32_t>(blocks - shard.physical.size()));
    HO_CHECK(run.has_value());
    for (std::uint32_t i = 0; i < run->count; ++i) shard.physical.push_back(run->first + i);
  }
  if (info.policy == Policy::kDurable) count_durable(shard);
  const auto made = volume.table.shards().emplace(info.id, std::move(shard));
  HO_CHECK(made.second);
  return made.first->second;
}

void StorePath::drop_shard(ExtentId extent) {
  const Shard* const shard = volume.table.find(extent);
  if (shard == nullptr) return;
  HO_CHECK(!shard->logged);
  for (const std::uint32_t block : shard->physical) volume.space.give({block, 1});
  if (shard->info.policy == Policy::kDurable) forget_durable(*shard);
  volume.table.shards().erase(extent);
}

void StorePath::count_durable(const Shard& shard) {
  HO_CHECK(shard.info.policy == Policy::kDurable);
  durable_extents_ += 1;
  durable_blocks_ += shard.blocks();
}

void StorePath::forget_durable(const Shard& shard) {
  HO_CHECK(durable_extents_ > 0 && durable_blocks_ >= shard.blocks());
  durable_extents_ -= 1;
  durable_blocks_ -= shard.blocks();
}

void StorePath::tend(TimePoint now) {
  const std::uint64_t unsaved = volume.unsaved_wear_bytes;
  if (unsaved == 0 || unsaved < unsaved_wear_seen_) {
    wear_saved_ = now;
  } else if (now - wear_saved_ >= kSaveWearAfter && !journal.broken()) {
    journal.request_frame();
  }
  unsaved_wear_seen_ = unsaved;
  if (write_frames_seen_ != journal.write_frames()) {
    write_frames_seen_ = journal.write_frames();
    write_frames_since_ = now;
  } else if (!sealed() && now - write_frames_since_ >= kSealAfter) {
    journal.request_frame();
  }
}

PathStatus StorePath::status() const {
  PathStatus out;
  out.name = volume.name;
  out.capacity_bytes = std::uint64_t{volume.space.blocks()} * kBlockBytes;
  out.free_bytes = std::uint64_t{volume.space.free_blocks()} * kBlockBytes;
  out.unused_bytes = volume.unused_bytes;
  out.wear = wear_today();
  out.write_bytes_per_day_max = budget.bytes_per_day_max();
  out.broken = journal.broken();
  out.broken_why = journal.broken_why();
  out.encrypted = volume.super.key != KeyCheck{};
  return out;
}

void StorePath::check_space(bool at_rest) const {
  std::uint64_t owned = 0;
  std::vector<bool> seen(volume.space.blocks(), false);
  for (const auto& [id, shard] : volume.table.shards()) {
    for (const std::uint32_t block : shard.physical) {
      HO_CHECK(!volume.space.is_free(block) && !seen[block]);
      seen[block] = true;
      ++owned;
    }
  }
  if (!at_rest || journal.broken()) return;
  HO_CHECK(owned + volume.space.free_blocks() == volume.space.blocks());
}

}  // namespace ho::flash
