#include "daemon/tier/flash/log/left_extents.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/units.hpp"
#include "daemon/tier/flash/log/layout.hpp"
#include "daemon/tier/flash/log/table.hpp"

namespace ho::flash {

namespace {

constexpr std::uint64_t kFrameBytes = kMiB;

Error corrupt() { return {Errc::kCorrupt, "what the last process left is damaged"}; }

/// What a frame that was left for this path must have.
FrameHeader header_of(const Volume& volume) {
  FrameHeader out;
  out.set = volume.super.set;
  out.path_index = volume.super.path_index;
  out.epoch = volume.super.epoch;
  out.salt = volume.super.salt;
  out.sequence = volume.sequence;
  return out;
}

bool same_log(const FrameHeader& a, const FrameHeader& b) {
  return a.set == b.set && a.epoch == b.epoch && a.salt == b.salt && a.sequence == b.sequence;
}

/// Moves these extents of a path to a table of their own.
Table take_out(Volume& volume, const std::set<ExtentId>& extents) {
  Table out(volume.super.path_index, volume.super.path_count, volume.geometry.data_blocks);
  for (const ExtentId id : extents) {
    auto shard = volume.table.shards().extract(id);
    if (shard.empty()) continue;
    HO_CHECK(shard.mapped().info.policy == Policy::kScratch && !shard.mapped().logged);
    shard.mapped().logged = true;  // a snapshot has it
    out.shards().insert(std::move(shard));
  }
  return out;
}

/// At most this many bytes of frames.
std::uint64_t bytes_max(const Table& table) {
  std::uint64_t blocks = 0;
  for (const auto& [id, shard] : table.shards()) blocks += shard.blocks();
  return Table::snapshot_frames_bytes(table.shards().size(), blocks, kFrameBytes) + kFrameBytes;
}

void put_frames(FrameHeader header, const Table& table, std::string& out) {
  std::vector<std::byte> frame(kFrameBytes);
  SnapshotCursor cursor;
  for (bool more = true; more;) {
    RecordWriter records{std::span(frame).subspan(kFrameHeaderBytes)};
    more = cursor.put(table, records);
    header.payload_bytes = static_cast<std::uint32_t>(records.bytes());
    const std::uint64_t length = seal_frame(header, frame);
    out.append(reinterpret_cast<const char*>(frame.data()), length);
  }
}

Result<void> apply(std::span<const std::byte> payload, Table& table) {
  RecordReader records(payload);
  for (;;) {
    const auto record = records.next();
    if (!record) return record.error();
    if (!*record) return {};
    if (auto applied = table.apply(**record); !applied) return applied;
  }
}

/// By path. The tables are sound each for itself.
Result<std::vector<Table>> read_tables(std::span<const std::byte> left,
                                       const std::vector<Volume>& volumes) {
  std::uint64_t length = 0;
  if (left.size() < sizeof length) return corrupt();
  std::memcpy(&length, left.data(), sizeof length);
  if (length != left.size()) return corrupt();
  std::vector<Table> tables;
  tables.reserve(volumes.size());
  for (const Volume& one : volumes) {
    tables.emplace_back(one.super.path_index, one.super.path_count, one.geometry.data_blocks);
  }
  std::set<std::uint16_t> seen;
  for (left = left.subspan(sizeof length); !left.empty();) {
    const auto header = open_frame(left);
    if (!header) return header.error();
    const std::uint16_t path = header->path_index;
    if (path >= volumes.size() || !same_log(*header, header_of(volumes[path]))) {
      return Error(Errc::kConflict, "the paths were used since, or are others");
    }
    seen.insert(path);
    const auto payload = left.subspan(kFrameHeaderBytes, header->payload_bytes);
    if (auto applied = apply(payload, tables[path]); !applied) return applied.error();
    left = left.subspan(frame_bytes(header->payload_bytes));
  }
  if (seen.size() != volumes.size()) return corrupt();
  for (const Table& table : tables) {
    if (const auto space = table.finish(); !space) return space.error();
  }
  return tables;
}

/// Whether an extent is on all of its paths, the same on each, and new to them.
bool whole(const ExtentInfo& info, std::vector<Table>& tables, std::vector<Volume>& volumes) {
  const Striping striping(info.id, static_cast<std::uint16_t>(volumes.size()));
  for (std::size_t i = 0; i < volumes.size(); ++i) {
    const bool needed = striping.shard_blocks(volumes[i].path, info.length_bytes) > 0;
    const Shard* const shard = tables[i].find(info.id);
    if (needed != (shard != nullptr) || volumes[i].table.find(info.id) != nullptr) return false;
    if (shard == nullptr) continue;
    const ExtentInfo& here = shard->info;
    if (here.length_bytes != info.length_bytes || !(here.about == info.about)) return false;
  }
  return true;
}

bool is_free(const Table& table, const Space& space) {
  return std::all_of(table.shards().begin(), table.shards().end(), [&](const auto& one) {
    const std::vector<std::uint32_t>& blocks = one.second.physical;
    return std::all_of(blocks.begin(), blocks.end(),
                       [&](std::uint32_t block) { return space.is_free(block); });
  });
}

/// Gives the extents of one path to its table, as what they were.
void add(Table& from, Volume& to) {
  while (!from.shards().empty()) {
    auto shard = from.shards().extract(from.shards().begin());
    Shard& mine = shard.mapped();
    for (std::uint32_t at = 0; at < mine.blocks();) {
      const std::uint32_t count = mine.together(at, mine.blocks() - at);
      HO_CHECK(to.space.claim({mine.physical[at], count}));
      at += count;
    }
    mine.info.policy = Policy::kScratch;
    mine.logged = false;
    to.next_extent = std::max(to.next_extent, shard.key().value() + 1);
    to.table.shards().insert(std::move(shard));
  }
}

}  // namespace

std::string leave_extents(std::span<Volume* const> volumes, const std::set<ExtentId>& extents) {
  std::vector<Table> tables;
  std::uint64_t most = sizeof(std::uint64_t);
  for (Volume* const volume : volumes) {
    tables.push_back(take_out(*volume, extents));
    most += bytes_max(tables.back());
  }
  std::string out(sizeof(std::uint64_t), '\0');
  out.reserve(most);
  for (std::size_t i = 0; i < volumes.size(); ++i) {
    put_frames(header_of(*volumes[i]), tables[i], out);
  }
  const std::uint64_t length = out.size();
  std::memcpy(out.data(), &length, sizeof length);
  return out;
}

Result<std::size_t> take_left(std::span<const std::byte> left, std::vector<Volume>& volumes) {
  auto tables = read_tables(left, volumes);
  if (!tables) return tables.error();
  std::map<ExtentId, ExtentInfo> extents;
  for (std::size_t i = 0; i < volumes.size(); ++i) {
    for (const auto& [id, shard] : (*tables)[i].shards()) extents.emplace(id, shard.info);
    if (!is_free((*tables)[i], volumes[i].space)) return corrupt();
  }
  for (const auto& [id, info] : extents) {
    if (id.value() == UINT64_MAX || !whole(info, *tables, volumes)) return corrupt();
  }
  for (std::size_t i = 0; i < volumes.size(); ++i) add((*tables)[i], volumes[i]);
  return extents.size();
}

}  // namespace ho::flash
