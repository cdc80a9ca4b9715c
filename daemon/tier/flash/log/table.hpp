#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "common/base/result.hpp"
#include "daemon/tier/flash/log/layout.hpp"
#include "daemon/tier/flash/log/space.hpp"

namespace ho::flash {

/// The guarantee of a completed write.
enum class Policy : std::uint8_t {
  kScratch,  ///< none after a crash; the extent ends with its session
  kDurable,  ///< the data survives a crash and a power cut; the extent stays until it is freed
};

struct ExtentInfo {
  ExtentId id;
  std::uint64_t length_bytes = 0;
  Policy policy = Policy::kScratch;
  std::uint64_t session = 0;  ///< that it ends with; of a scratch extent only
  ExtentAbout about;
};

/// Distribution of an extent's stripes over the paths: stripe s is on path (s + id) mod paths.
class Striping {
 public:
  Striping(ExtentId id, std::uint16_t path_count)
      : paths_(path_count), turn_(static_cast<std::uint16_t>(id.value() % path_count)) {}

  struct Place {
    PathIndex path;
    std::uint32_t block = 0;  ///< block number within the shard
  };
  [[nodiscard]] Place place(std::uint64_t extent_block) const;
  [[nodiscard]] std::uint64_t extent_block(PathIndex path, std::uint32_t block) const;
  /// Number of the shard's blocks on this path for an extent of this many bytes; 0: no shard.
  [[nodiscard]] std::uint64_t shard_blocks(PathIndex path, std::uint64_t length_bytes) const;

 private:
  [[nodiscard]] std::uint64_t first_stripe(PathIndex path) const {
    return (path.value() + paths_ - turn_) % paths_;
  }
  std::uint64_t paths_;
  std::uint16_t turn_;
};

/// The part of an extent on one path, and the state of its blocks.
struct Shard {
  ExtentInfo info;
  std::vector<std::uint32_t> physical;  ///< data block of each block
  std::vector<std::uint64_t> sums;      ///< per block; 0: never written
  bool logged = false;                  ///< it is in the log, so a snapshot must have it too

  [[nodiscard]] std::uint32_t blocks() const { return static_cast<std::uint32_t>(sums.size()); }
  /// Number of contiguous blocks on the path from `block` on, at most `count`.
  [[nodiscard]] std::uint32_t together(std::uint32_t block, std::uint32_t count) const;
};

inline constexpr std::uint32_t kUnmapped = UINT32_MAX;

/// The checksum of a block in the form of tables: never 0.
[[nodiscard]] std::uint64_t block_sum(std::span<const std::byte, kBlockBytes> block);

/// All extents of one path. Pure. Applying the log's records in order rebuilds it.
class Table {
 public:
  Table(std::uint16_t path_index, std::uint16_t path_count, std::uint32_t data_blocks)
      : path_(path_index), paths_(path_count), data_blocks_(data_blocks) {}

  [[nodiscard]] std::map<ExtentId, Shard>& shards() { return shards_; }
  [[nodiscard]] const std::map<ExtentId, Shard>& shards() const { return shards_; }
  [[nodiscard]] Shard* find(ExtentId id);

  /// Applies one record from a path. @return kCorrupt: it contradicts the table, which is unusable
  /// then.
  [[nodiscard]] Result<void> apply(const Record& record);
  /// Call it after the last record: checks that each block is mapped and no two blocks share a
  /// place. @return the remaining space, or kCorrupt.
  [[nodiscard]] Result<Space> finish() const;

  /// An upper bound for the bytes of a snapshot's records, wherever the blocks of these extents are
  /// and whichever are written. Per extent: create, and the heads of a kMap and a kSums, 200 bytes.
  /// Per block: 8 for its place and 8 for its checksum (a gap between written blocks has zeros or
  /// is longer than a head), plus 1/4 as its part of the heads of full records. Another 1 % for
  /// records that continue in the next frame.
  [[nodiscard]] static std::uint64_t snapshot_bytes(std::uint64_t extents, std::uint64_t blocks) {
    return extents * 248 + blocks * 17;
  }
  /// The same as frames of one copy of a log, if frames have at most this many bytes: all but the
  /// last have that length, with fewer unused bytes than the next record needs.
  [[nodiscard]] static std::uint64_t snapshot_frames_bytes(std::uint64_t extents,
                                                           std::uint64_t blocks,
                                                           std::uint64_t frame_bytes_max) {
    constexpr std::uint64_t kWaste = kFrameHeaderBytes + kCreateBytes - 1;
    const std::uint64_t records = snapshot_bytes(extents, blocks);
    const std::uint64_t frames = records / (frame_bytes_max - kWaste) + 1;
    return align_up(records + frames * kWaste, kBlockBytes);
  }

 private:
  [[nodiscard]] Result<void> create(const Record& record);
  [[nodiscard]] bool map(Shard& shard, const Record& record) const;
  [[nodiscard]] bool write(Shard& shard, const Record& record) const;

  std::uint16_t path_;
  std::uint16_t paths_;
  std::uint32_t data_blocks_;
  std::uint64_t blocks_ = 0;  ///< sum over all shards that records created
  std::map<ExtentId, Shard> shards_;
};

/// Writes a table's logged shards as records, frame by frame.
class SnapshotCursor {
 public:
  /// Writes as much as fits. @return false: all has been written.
  [[nodiscard]] bool put(const Table& table, RecordWriter& out);

 private:
  enum class Part : std::uint8_t { kCreate, kMap, kSums };
  [[nodiscard]] bool put_shard(const Shard& shard, RecordWriter& out);
  [[nodiscard]] bool put_map(const Shard& shard, RecordWriter& out);
  [[nodiscard]] bool put_sums(const Shard& shard, RecordWriter& out);

  ExtentId extent_;  ///< the current extent, or the next from here on
  Part part_ = Part::kCreate;
  std::uint32_t block_ = 0;
};

/// kCreate and the kMap records of a shard. @return false: they do not fit; `out` is unchanged.
[[nodiscard]] bool put_new_shard(const Shard& shard, RecordWriter& out);
/// The size of those records.
[[nodiscard]] std::uint64_t new_shard_bytes(const Shard& shard);

}  // namespace ho::flash
