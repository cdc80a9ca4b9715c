#include "daemon/tier/flash/log/table.hpp"

#include <algorithm>
#include <string>

#include "common/base/check.hpp"
#include "common/base/checksum.hpp"

namespace ho::flash {

namespace {

constexpr std::size_t kMapRunsMax = 256;
// A kSums record of a snapshot continues over up to this many blocks that were never written: their
// zeros take as many bytes as another head.
constexpr std::uint32_t kZeroSumsMax = kListHeadBytes / 8;

Record create_record(const Shard& shard) {
  Record out;
  out.kind = Record::Kind::kCreate;
  out.extent = shard.info.id;
  out.length_bytes = shard.info.length_bytes;
  out.about = shard.info.about;
  return out;
}

/// Collects the runs from `block` on, at most `most`. @return the number of blocks that they cover.
std::uint32_t collect_runs(const Shard& shard, std::uint32_t block, std::size_t most,
                           std::vector<BlockRun>& runs) {
  runs.clear();
  std::uint32_t at = block;
  while (at < shard.blocks() && runs.size() < most) {
    const std::uint32_t count = shard.together(at, std::min(kRunBlocksMax, shard.blocks() - at));
    runs.push_back({shard.physical[at], count});
    at += count;
  }
  return at - block;
}

}  // namespace

Striping::Place Striping::place(std::uint64_t extent_block) const {
  const std::uint64_t stripe = extent_block / kStripeBlocks;
  return {
      PathIndex(static_cast<std::uint16_t>((stripe + turn_) % paths_)),
      static_cast<std::uint32_t>(stripe / paths_ * kStripeBlocks + extent_block % kStripeBlocks)};
}

std::uint64_t Striping::extent_block(PathIndex path, std::uint32_t block) const {
  const std::uint64_t stripe = first_stripe(path) + block / kStripeBlocks * paths_;
  return stripe * kStripeBlocks + block % kStripeBlocks;
}

std::uint64_t Striping::shard_blocks(PathIndex path, std::uint64_t length_bytes) const {
  const std::uint64_t blocks = (length_bytes - 1) / kBlockBytes + 1;
  const std::uint64_t stripes = (blocks - 1) / kStripeBlocks + 1;
  const std::uint64_t first = first_stripe(path);
  if (first >= stripes) return 0;
  const std::uint64_t here = (stripes - 1 - first) / paths_ + 1;
  const bool has_last = (stripes - 1 - first) % paths_ == 0;
  const std::uint64_t missing = has_last ? stripes * kStripeBlocks - blocks : 0;
  return here * kStripeBlocks - missing;
}

std::uint32_t Shard::together(std::uint32_t block, std::uint32_t count) const {
  HO_CHECK(count > 0 && block < blocks() && count <= blocks() - block);
  std::uint32_t length = 1;
  while (length < count && physical[block + length] == physical[block] + length) ++length;
  return length;
}

std::uint64_t block_sum(std::span<const std::byte, kBlockBytes> block) {
  return std::max<std::uint64_t>(1, checksum64(block));
}

Shard* Table::find(ExtentId id) {
  const auto found = shards_.find(id);
  return found == shards_.end() ? nullptr : &found->second;
}

Result<void> Table::create(const Record& record) {
  const std::string what = "extent " + std::to_string(record.extent.value());
  if (shards_.count(record.extent) != 0) return Error(Errc::kCorrupt, what + " is created twice");
  const std::uint64_t most = kPathBytesMax * paths_;
  const std::uint64_t blocks =
      record.length_bytes > most
          ? UINT64_MAX
          : Striping(record.extent, paths_).shard_blocks(PathIndex(path_), record.length_bytes);
  if (blocks == 0 || blocks > data_blocks_ - blocks_) {
    return Error(Errc::kCorrupt, what + " does not fit its path");
  }
  Shard shard;
  shard.info = {record.extent, record.length_bytes, Policy::kDurable, 0, record.about};
  shard.physical.assign(blocks, kUnmapped);
  shard.sums.assign(blocks, 0);
  shard.logged = true;
  blocks_ += blocks;
  shards_.emplace(record.extent, std::move(shard));
  return {};
}

bool Table::map(Shard& shard, const Record& record) const {
  std::uint64_t at = record.block;
  for (const BlockRun& run : record.runs) {
    if (at + run.count > shard.blocks()) return false;
    if (run.first >= data_blocks_ || run.count > data_blocks_ - run.first) return false;
    for (std::uint32_t i = 0; i < run.count; ++i) shard.physical[at + i] = run.first + i;
    at += run.count;
  }
  return true;
}

bool Table::write(Shard& shard, const Record& record) const {
  const std::uint64_t count = record.sums.size();
  if (record.block + count > shard.blocks()) return false;
  const bool moves = record.kind == Record::Kind::kWrite;
  if (moves && record.physical + count > data_blocks_) return false;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (moves) shard.physical[record.block + i] = record.physical + i;
    shard.sums[record.block + i] = record.sums[i];
  }
  return true;
}

Result<void> Table::apply(const Record& record) {
  if (record.kind == Record::Kind::kCreate) return create(record);
  const std::string what = "extent " + std::to_string(record.extent.value());
  Shard* const shard = find(record.extent);
  if (shard == nullptr)
    return Error(Errc::kCorrupt, "a record names " + what + ", which does not exist");
  bool sound = true;
  switch (record.kind) {
    case Record::Kind::kMap: sound = map(*shard, record); break;
    case Record::Kind::kWrite:
    case Record::Kind::kSums: sound = write(*shard, record); break;
    case Record::Kind::kFree:
      blocks_ -= shard->blocks();
      shards_.erase(record.extent);
      break;
    case Record::Kind::kUsed: shard->info.about.used = record.about.used; break;
    case Record::Kind::kCreate: break;
  }
  if (!sound) return Error(Errc::kCorrupt, "a record exceeds the bounds of " + what);
  return {};
}

Result<Space> Table::finish() const {
  Space space(data_blocks_);
  for (const auto& [id, shard] : shards_) {
    for (std::uint32_t at = 0; at < shard.blocks();) {
      const std::uint32_t count = shard.together(at, shard.blocks() - at);
      if (!space.claim({shard.physical[at], count})) {
        return Error(Errc::kCorrupt, "extent " + std::to_string(id.value()) + ", block " +
                                         std::to_string(at) +
                                         " of its shard: no place, or one "
                                         "that another extent has");
      }
      at += count;
    }
  }
  return space;
}

bool put_new_shard(const Shard& shard, RecordWriter& out) {
  RecordWriter trial = out;
  if (!trial.put(create_record(shard))) return false;
  std::vector<BlockRun> runs;
  for (std::uint32_t at = 0; at < shard.blocks();) {
    Record map;
    map.kind = Record::Kind::kMap;
    map.extent = shard.info.id;
    map.block = at;
    at += collect_runs(shard, at, kMapRunsMax, runs);
    map.runs = runs;
    if (!trial.put(map)) return false;
  }
  out = trial;
  return true;
}

std::uint64_t new_shard_bytes(const Shard& shard) {
  std::uint64_t runs = 0;
  for (std::uint32_t at = 0; at < shard.blocks(); ++runs) {
    at += shard.together(at, std::min(kRunBlocksMax, shard.blocks() - at));
  }
  return kCreateBytes + 8 * runs + kListHeadBytes * ((runs - 1) / kMapRunsMax + 1);
}

// Records fill the rest of a frame: a record of 256 elements would waste half of a frame of 4 KiB.
bool SnapshotCursor::put_map(const Shard& shard, RecordWriter& out) {
  std::vector<BlockRun> runs;
  while (block_ < shard.blocks()) {
    Record map;
    map.kind = Record::Kind::kMap;
    map.extent = shard.info.id;
    map.block = block_;
    const std::size_t room = std::min(kMapRunsMax, out.list_room());
    if (room == 0) return false;
    const std::uint32_t covered = collect_runs(shard, block_, room, runs);
    map.runs = runs;
    HO_CHECK(out.put(map));
    block_ += covered;
  }
  return true;
}

bool SnapshotCursor::put_sums(const Shard& shard, RecordWriter& out) {
  while (block_ < shard.blocks()) {
    if (shard.sums[block_] == 0) {
      ++block_;
      continue;
    }
    const std::size_t room = std::min(kSumsMax, out.list_room());
    if (room == 0) return false;
    const auto most =
        static_cast<std::uint32_t>(std::min<std::size_t>(room, shard.blocks() - block_));
    std::uint32_t count = 1;  // up to the last written block
    for (std::uint32_t i = 1; i < most && i - count <= kZeroSumsMax; ++i) {
      if (shard.sums[block_ + i] != 0) count = i + 1;
    }
    Record sums;
    sums.kind = Record::Kind::kSums;
    sums.extent = shard.info.id;
    sums.block = block_;
    sums.sums = std::span(shard.sums).subspan(block_, count);
    HO_CHECK(out.put(sums));
    block_ += count;
  }
  return true;
}

bool SnapshotCursor::put_shard(const Shard& shard, RecordWriter& out) {
  if (part_ == Part::kCreate) {
    if (!out.put(create_record(shard))) return false;
    part_ = Part::kMap;
    block_ = 0;
  }
  if (part_ == Part::kMap) {
    if (!put_map(shard, out)) return false;
    part_ = Part::kSums;
    block_ = 0;
  }
  return put_sums(shard, out);
}

bool SnapshotCursor::put(const Table& table, RecordWriter& out) {
  for (auto at = table.shards().lower_bound(extent_); at != table.shards().end(); ++at) {
    const Shard& shard = at->second;
    if (!shard.logged) continue;
    if (shard.info.id != extent_) part_ = Part::kCreate;
    extent_ = shard.info.id;
    if (!put_shard(shard, out)) return true;
    extent_ = ExtentId(shard.info.id.value() + 1);
    part_ = Part::kCreate;
  }
  extent_ = ExtentId(UINT64_MAX);
  return false;
}

}  // namespace ho::flash
