#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.hpp"
#include "common/base/strong.hpp"
#include "common/base/units.hpp"
#include "daemon/tier/flash/device/device.hpp"

namespace ho::flash {

/// One extent on flash. Unique in a set of paths; the id of a durable extent is never reused.
using ExtentId = Strong<struct ExtentIdTag, std::uint64_t>;

// The layout of a path; LAYOUT.md has a picture and the reasons.
inline constexpr std::uint32_t kFormatVersion = 5;
/// The same, of an encrypted path: a program that knows no keys refuses it.
inline constexpr std::uint32_t kFormatVersionEncrypted = 6;
inline constexpr std::uint64_t kStripeBytes = kMiB;
inline constexpr std::uint64_t kStripeBlocks = kStripeBytes / kBlockBytes;
inline constexpr std::uint64_t kPathBytesMin = kMiB;
inline constexpr std::uint64_t kPathBytesMax = 16 * 1024 * kGiB;  ///< block numbers are 32 bits
inline constexpr std::uint64_t kAreaBytesPerBlock = 24;
inline constexpr std::uint64_t kAreaBytesMin = 64 * kKiB;
/// A blank path is zero for this many bytes at both ends: other formats have their marks there
/// (btrfs at 64 KiB, md at 4 KiB or before the end, ZFS at 128 KiB).
inline constexpr std::uint64_t kBlankBytes = kMiB;
inline constexpr std::size_t kCopies = 2;
inline constexpr std::uint16_t kPathsMax = 64;
/// Limit for frames of one log that are written and not known to be durable.
inline constexpr std::uint32_t kFramesOpenMax = 4;

/// The places of all parts on one path. Depends on its size only.
struct Geometry {
  std::uint64_t path_bytes = 0;  ///< a multiple of kBlockBytes
  std::uint64_t area_bytes = 0;  ///< size of one copy of one log area
  std::uint32_t data_blocks = 0;

  [[nodiscard]] std::uint64_t super_offset(std::size_t copy) const;
  [[nodiscard]] std::uint64_t area_offset(std::size_t area, std::size_t copy) const;
  [[nodiscard]] std::uint64_t data_offset(std::uint32_t block) const;
  /// The largest frame, with header and padding.
  [[nodiscard]] std::uint64_t frame_bytes_max() const;
  /// The largest snapshot in bytes of records, so that it and at least the longest frame fit an
  /// area.
  [[nodiscard]] std::uint64_t snapshot_bytes_max() const { return area_bytes / 8 * 7; }
};

/// @return kInvalidArgument: smaller than kPathBytesMin or larger than kPathBytesMax.
[[nodiscard]] Result<Geometry> plan_geometry(std::uint64_t path_bytes);

using SetId = std::array<std::byte, 16>;

/// Bytes written to a path, data and metadata.
struct Wear {
  std::uint32_t day = 0;  ///< days since 1970, UTC
  std::uint64_t day_bytes = 0;
  std::uint64_t total_bytes = 0;
};

/// The first and the last block of a path: they identify it and its valid log.
struct Superblock {
  SetId set{};  ///< random, made at formatting, equal on all paths of a set
  std::uint16_t path_index = 0;
  std::uint16_t path_count = 1;
  std::uint64_t path_bytes = 0;
  std::uint64_t epoch = 0;  ///< epoch of the valid log; its area is epoch % 2
  std::uint64_t snapshot_frames =
      0;                   ///< number of frames at the start of the log that rebuild the table
  std::uint64_t salt = 0;  ///< salt of this log; different for each attempt to begin a log
  KeyCheck key{};          ///< of the key that all but superblocks is encrypted with; zeros: none
};

void encode_superblock(const Superblock& super, std::span<std::byte, kBlockBytes> out);
/// @return kNotFound: all zeros; kUnsupported: another version; kCorrupt: all else.
[[nodiscard]] Result<Superblock> decode_superblock(std::span<const std::byte, kBlockBytes> block);
/// The error for a path with foreign contents.
[[nodiscard]] Error foreign_path(const std::string& what);

/// A frame of the log. Its records become durable together.
struct FrameHeader {
  SetId set{};
  std::uint16_t path_index = 0;
  std::uint64_t epoch = 0;
  std::uint64_t salt = 0;
  std::uint64_t sequence = 0;     ///< 0 is the first frame of the epoch
  std::uint64_t next_extent = 1;  ///< no durable extent ever had this id or a larger one
  std::uint32_t payload_bytes = 0;
  Wear wear;
  std::uint64_t safe_frames = 0;  ///< number of frames of this log that were durable, with their
                                  ///< data, when this one was written
  std::uint64_t boot = 0;         ///< DeviceCaps::boot when it was written
};
inline constexpr std::size_t kFrameHeaderBytes = 128;

/// Writes the header in front of a payload at kFrameHeaderBytes, and pads with zeros. @return the
/// length of the frame, a multiple of kBlockBytes.
[[nodiscard]] std::uint64_t seal_frame(const FrameHeader& header, std::span<std::byte> frame);
/// Reads the header at the start of `bytes` without checking the frame. @return kCorrupt: there is
/// none.
[[nodiscard]] Result<FrameHeader> read_frame_header(std::span<const std::byte> bytes);
/// Reads the frame at the start of `bytes`. @return kCorrupt: there is no complete, valid frame.
[[nodiscard]] Result<FrameHeader> open_frame(std::span<const std::byte> bytes);
/// The length of a frame with this payload on the path.
[[nodiscard]] constexpr std::uint64_t frame_bytes(std::uint64_t payload_bytes) {
  return align_up(kFrameHeaderBytes + payload_bytes, kBlockBytes);
}

/// A hash of the secret by which a later session opens a durable extent. See access_hash.hpp.
using AccessHash = std::array<std::byte, 16>;
/// Longest text in a record, in bytes of UTF-8.
inline constexpr std::size_t kTextBytesMax = 40;

/// Facts about an extent besides its bytes.
struct ExtentAbout {
  AccessHash access{};  ///< hash of the secret that opens it
  std::string owner;    ///< "uid 1000", or the host of a job; kTextBytesMax at most
  std::string label;    ///< the job's name; kTextBytesMax at most
  std::chrono::sys_seconds created{};
  std::chrono::sys_seconds used{};  ///< a session had it open until then, or longer
  bool operator==(const ExtentAbout&) const = default;
};

struct BlockRun {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

/// A record of the log. Its kind determines the valid fields. Block numbers of an extent are those
/// of its shard on this path.
struct Record {
  enum class Kind : std::uint16_t {
    kCreate = 1,  ///< extent, length_bytes, about
    kMap = 2,     ///< extent, block, runs: the physical runs of the blocks from `block` on
    kWrite = 3,   ///< extent, block, physical, sums: blocks are now there, with these sums
    kSums = 4,    ///< extent, block, sums: the same at their place; 0: never written
    kFree = 5,    ///< extent
    kUsed = 6,    ///< extent, about.used
  };
  Kind kind = Kind::kFree;
  ExtentId extent;
  std::uint64_t length_bytes = 0;
  ExtentAbout about;
  std::uint32_t block = 0;
  std::uint32_t physical = 0;
  std::span<const std::uint64_t> sums;
  std::span<const BlockRun> runs;
};

inline constexpr std::size_t kCreateBytes = 136;
inline constexpr std::size_t kFreeBytes = 16;
inline constexpr std::size_t kUsedBytes = 24;
inline constexpr std::size_t kListHeadBytes = 32;  ///< kMap, kWrite, kSums; 8 more per element
inline constexpr std::uint32_t kRunBlocksMax = 1U << 24U;
inline constexpr std::size_t kSumsMax = kStripeBlocks;

/// Writes records into the payload of a frame. A value over memory of the caller.
class RecordWriter {
 public:
  explicit RecordWriter(std::span<std::byte> payload) : payload_(payload) {}
  /// @return false: it does not fit; nothing was written.
  [[nodiscard]] bool put(const Record& record);
  [[nodiscard]] std::size_t bytes() const { return used_; }
  /// The number of list elements that still fit; 0: none.
  [[nodiscard]] std::size_t list_room() const {
    const std::size_t left = payload_.size() - used_;
    return left < kListHeadBytes ? 0 : (left - kListHeadBytes) / 8;
  }

 private:
  std::span<std::byte> payload_;
  std::size_t used_ = 0;
};

/// Reads the records of a payload in sequence. Untrusted bytes: checks every length.
class RecordReader {
 public:
  explicit RecordReader(std::span<const std::byte> payload) : left_(payload) {}
  /// @return nullopt at the end; kCorrupt: an invalid record. Spans point into the reader and are
  /// valid until the next call.
  [[nodiscard]] Result<std::optional<Record>> next();

 private:
  [[nodiscard]] bool read_list(Record& record, std::span<const std::byte> body);

  std::span<const std::byte> left_;
  std::vector<std::uint64_t> sums_;
  std::vector<BlockRun> runs_;
};

}  // namespace ho::flash
