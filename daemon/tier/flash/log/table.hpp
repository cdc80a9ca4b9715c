#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "common/base/result.hpp"
#include "daemon/tier/flash/log/layout.hpp"
#include "daemon/tier/flash/log/space.hpp"

namespace ho::flash {

/// What a write's completion promises.
enum class Policy : std::uint8_t {
  kScratch,  ///< nothing after a crash; the extent ends with its session
  kDurable,  ///< the bytes outlive a crash and a power cut; the extent stays until it is freed
};

struct ExtentInfo {
  ExtentId id;
  Owner owner;
  std::uint64_t length_bytes = 0;
  Policy policy = Policy::kScratch;
  bool operator==(const ExtentInfo&) const = default;
};

/// How an extent's stripes are spread over the paths: stripe s lies on path (s + id) mod paths.
class Striping {
 public:
  Striping(ExtentId id, std::uint16_t path_count)
      : paths_(path_count), turn_(static_cast<std::uint16_t>(id.value() % path_count)) {}

  struct Place {
    PathIndex path;
    std::uint32_t block = 0;  ///< of the shard
  };
  [[nodiscard]] Place place(std::uint64_t extent_block) const;
  [[nodiscard]] std::uint64_t extent_block(PathIndex path, std::uint32_t block) const;
  /// Blocks of the shard on this path for an extent of so many bytes; 0: there is no shard.
  [[nodiscard]] std::uint64_t shard_blocks(PathIndex path, std::uint64_t length_bytes) const;

 private:
  [[nodiscard]] std::uint64_t first_stripe(PathIndex path) const {
    return (path.value() + paths_ - turn_) % paths_;
  }
  std::uint64_t paths_;
  std::uint16_t turn_;
};

/// The part of an extent that lies on one path, and what is known of its blocks.
struct Shard {
  ExtentInfo info;
  std::vector<std::uint32_t> physical;  ///< data block of each block
  std::vector<std::uint64_t> sums;      ///< of each block; 0: never written
  bool logged = false;                  ///< the log has it: a snapshot must have it too

  [[nodiscard]] std::uint32_t blocks() const { return static_cast<std::uint32_t>(sums.size()); }
  /// Blocks from `block` on, at most `count`, that lie together on the path.
  [[nodiscard]] std::uint32_t together(std::uint32_t block, std::uint32_t count) const;
};

inline constexpr std::uint32_t kUnmapped = UINT32_MAX;

/// The checksum of a block as tables keep it: never 0.
[[nodiscard]] std::uint64_t block_sum(std::span<const std::byte, kBlockBytes> block);

/// All extents of one path. Pure. The log's records, applied in their order, rebuild it.
class Table {
 public:
  Table(std::uint16_t path_index, std::uint16_t path_count, std::uint32_t data_blocks)
      : path_(path_index), paths_(path_count), data_blocks_(data_blocks) {}

  [[nodiscard]] std::map<ExtentId, Shard>& shards() { return shards_; }
  [[nodiscard]] const std::map<ExtentId, Shard>& shards() const { return shards_; }
  [[nodiscard]] Shard* find(ExtentId id);

  /// Applies one record that came from a path. @return kCorrupt: it contradicts the table; the
  /// table is then of no use.
  [[nodiscard]] Result<void> apply(const Record& record);
  /// After the last record: each block is mapped and no two blocks lie in one place. @return
  /// the space that is left, kCorrupt.
  [[nodiscard]] Result<Space> finish() const;

  /// An upper bound of a snapshot's records, wherever the blocks of these extents lie and whichever
  /// of them are written. An extent: create, and the heads of a kMap and a kSums, 112 bytes. A
  /// block: 8 of place and 8 of checksum, as a gap in what is written has its zeros or is longer
  /// than a head; and its part of the heads of full records, 1/4. Another 1 % is records that go
  /// on in the next frame.
  [[nodiscard]] static std::uint64_t snapshot_bytes(std::uint64_t extents, std::uint64_t blocks) {
    return extents * 160 + blocks * 17;
  }
  /// The same as frames of one copy of a log, where those have at most so many bytes: all but the
  /// last are of that length, with at most 47 bytes left that the next record finds too short.
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
  std::uint64_t blocks_ = 0;  ///< of all shards that records created
  std::map<ExtentId, Shard> shards_;
};

/// Writes a table's logged shards as records, frame after frame.
class SnapshotCursor {
 public:
  /// Puts as much as fits. @return false: all has been written.
  [[nodiscard]] bool put(const Table& table, RecordWriter& out);

 private:
  enum class Part : std::uint8_t { kCreate, kMap, kSums };
  [[nodiscard]] bool put_shard(const Shard& shard, RecordWriter& out);
  [[nodiscard]] bool put_map(const Shard& shard, RecordWriter& out);
  [[nodiscard]] bool put_sums(const Shard& shard, RecordWriter& out);

  ExtentId extent_;  ///< being written, or the next from here on
  Part part_ = Part::kCreate;
  std::uint32_t block_ = 0;
};

/// kCreate and the kMap records of a shard. @return false: they do not fit; `out` is unchanged.
[[nodiscard]] bool put_new_shard(const Shard& shard, RecordWriter& out);
/// How many bytes those records have.
[[nodiscard]] std::uint64_t new_shard_bytes(const Shard& shard);

}  // namespace ho::flash
