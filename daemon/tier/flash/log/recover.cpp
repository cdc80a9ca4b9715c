#include "daemon/tier/flash/log/recover.hpp"

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "common/base/check.hpp"
#include "daemon/tier/flash/device/aligned_memory.hpp"

namespace ho::flash {

namespace {

// Frames are read through a window of this size: one device operation reads many small frames.
constexpr std::uint64_t kWindowBytes = 4 * kMiB;

/// One copy of a log area, read through a window.
class AreaReader {
 public:
  AreaReader(BlockingIo& io, const Volume& volume, std::size_t copy)
      : io_(io),
        path_(volume.path),
        offset_(volume.geometry.area_offset(volume.super.epoch % 2, copy)),
        area_bytes_(volume.geometry.area_bytes),
        window_(std::min(kWindowBytes, area_bytes_)) {}

  /// Up to `length` bytes of the area from `at` on; fewer at the end of the area, or before an
  /// unreadable block.
  struct Piece {
    std::span<const std::byte> bytes;
    bool cut = false;          ///< by such a block
    std::uint64_t failed = 0;  ///< its offset on the path
  };
  /// @return kDeadline.
  Result<Piece> at(std::uint64_t at, std::uint64_t length) {
    length = std::min(length, area_bytes_ - at);
    const bool known = at >= begin_ && at <= end_ && (at + length <= end_ || end_is_bad_);
    if (!known) {
      if (auto filled = fill(at); !filled) return filled.error();
    }
    Piece out;
    out.cut = at + length > end_;
    out.failed = offset_ + end_;
    out.bytes = window_.span().subspan(at - begin_, out.cut ? end_ - at : length);
    return out;
  }

 private:
  /// Loads the window from `at` on, up to the first unreadable block, which is searched once and
  /// not for each frame before it. Bytes that are already in the window are not read again.
  Result<void> fill(std::uint64_t at) {
    const std::uint64_t stop = std::min(area_bytes_, at + window_.span().size());
    if (at >= begin_ && at < end_) {
      std::memmove(window_.data(), window_.data() + (at - begin_), end_ - at);
    } else {
      end_ = at;
    }
    begin_ = at;
    end_is_bad_ = false;
    while (end_ < stop) {
      const std::uint64_t length = std::min(kDeviceOpBytesMax, stop - end_);
      const auto whole = read(end_, length);
      if (whole) end_ += length;
      if (whole) continue;
      if (whole.error().code() == Errc::kDeadline) return whole;
      for (const std::uint64_t part_end = end_ + length; end_ < part_end; end_ += kBlockBytes) {
        const auto block = read(end_, kBlockBytes);
        if (block) continue;
        if (block.error().code() == Errc::kDeadline) return block;
        end_is_bad_ = true;
        return {};
      }
    }
    return {};
  }

  [[nodiscard]] Result<void> read(std::uint64_t at, std::uint64_t length) {
    return io_.read(path_, offset_ + at, window_.span().subspan(at - begin_, length));
  }

  BlockingIo& io_;
  PathIndex path_;
  std::uint64_t offset_;
  std::uint64_t area_bytes_;
  AlignedMemory window_;
  std::uint64_t begin_ = 0;
  std::uint64_t end_ = 0;
  bool end_is_bad_ = false;  ///< the block there is unreadable
};

/// Replays the log that a volume's superblock names.
class Replay {
 public:
  Replay(BlockingIo& io, Volume& volume, Findings& findings)
      : io_(io),
        volume_(volume),
        findings_(findings),
        copies_{AreaReader(io, volume, 0), AreaReader(io, volume, 1)} {}

  Result<void> run() {
    while (volume_.head_bytes < volume_.geometry.area_bytes) {
      auto frame = next_frame();
      if (!frame) return frame.error();
      if (!*frame) break;
      take(**frame);
      if (auto applied = apply_safe(); !applied) return applied;
    }
    const std::string where = "log frame " + std::to_string(volume_.sequence);
    if (volume_.sequence < volume_.super.snapshot_frames) {
      return Error(Errc::kCorrupt,
                   where + " is damaged in both copies; the table cannot be rebuilt");
    }
    auto later = later_frame();
    if (!later) return later.error();
    if (*later) {
      return Error(Errc::kCorrupt,
                   where + " is damaged in both copies, and acknowledged ones follow it");
    }
    // A record follows the completed write of its data, and a device without a power loss since
    // still has it. So every mismatch is damage.
    const bool same_boot = last_boot_ != 0 && last_boot_ == io_.device().caps().boot;
    if (!same_boot) return apply_in_doubt();
    safe_frames_ = volume_.sequence;
    return apply_safe();
  }

 private:
  struct Found {
    FrameHeader header;
    std::span<const std::byte> payload;
  };

  [[nodiscard]] bool ours(const FrameHeader& header) const {
    return header.set == volume_.super.set && header.path_index == volume_.super.path_index &&
           header.epoch == volume_.super.epoch && header.salt == volume_.super.salt;
  }

  [[nodiscard]] bool next(const FrameHeader& header) const {
    return ours(header) && header.sequence == volume_.sequence;
  }

  /// Whether the frame at the head could be in a piece, apart from its unreadable part.
  [[nodiscard]] bool unreadable(const AreaReader::Piece& piece) const {
    if (!piece.cut || piece.bytes.empty()) return piece.cut;
    const auto header = read_frame_header(piece.bytes);
    return header && next(*header) && frame_bytes(header->payload_bytes) > piece.bytes.size();
  }

  /// The frame at the head, from the first copy in which it is intact; nullopt: in neither. @return
  /// kIo: unknown, since neither copy is readable.
  Result<std::optional<Found>> next_frame() {
    std::optional<Found> found;
    std::size_t sound = 0;
    std::size_t lost = 0;
    std::string places;
    for (AreaReader& copy : copies_) {
      const auto read = copy.at(volume_.head_bytes, volume_.geometry.frame_bytes_max());
      if (!read) return read.error();
      const AreaReader::Piece& piece = *read;
      const auto header = open_frame(piece.bytes);
      if (!header && unreadable(piece)) {
        ++lost;
        places += (lost > 1 ? " and byte " : "byte ") + std::to_string(piece.failed);
      }
      if (!header || !next(*header)) continue;
      ++sound;
      if (found) continue;
      found = Found{*header, piece.bytes.subspan(kFrameHeaderBytes, header->payload_bytes)};
    }
    const std::string where = "log frame " + std::to_string(volume_.sequence);
    if (lost == kCopies) {
      return Error(Errc::kIo, where + " cannot be read in either copy, at " + places +
                                  "; it may have acknowledged writes");
    }
    if (lost > 0) findings_.push_back(where + " cannot be read in one copy, at " + places);
    if (sound == 1) findings_.push_back(where + " is intact in one copy only");
    return found;
  }

  /// Whether the data of a frame's writes is durable, or may have been in flight at the end.
  enum class Data : std::uint8_t { kSafe, kInDoubt };

  /// Accepts the header of a frame, and keeps its records until the state of its data is known.
  void take(const Found& frame) {
    const std::uint64_t sequence = volume_.sequence;
    std::uint64_t safe = std::min(sequence, frame.header.safe_frames);
    if (safe + kFramesOpenMax < sequence + 1) safe = sequence + 1 - kFramesOpenMax;
    safe_frames_ = std::max(safe_frames_, safe);
    held_.emplace_back(frame.payload.begin(), frame.payload.end());
    last_boot_ = frame.header.boot;
    volume_.wear = frame.header.wear;
    volume_.next_extent = std::max(volume_.next_extent, frame.header.next_extent);
    ++volume_.sequence;
    volume_.head_bytes += frame_bytes(frame.header.payload_bytes);
  }

  Result<void> apply_safe() {
    for (; volume_.sequence - held_.size() < safe_frames_; held_.pop_front()) {
      if (auto applied = apply(held_.front(), Data::kSafe); !applied) return applied;
    }
    return {};
  }

  Result<void> apply_in_doubt() {
    for (; !held_.empty(); held_.pop_front()) {
      if (auto applied = apply(held_.front(), Data::kInDoubt); !applied) return applied;
    }
    if (missing_blocks_ > 0) {
      findings_.push_back("at the end of the log, the data of " + std::to_string(missing_blocks_) +
                          " blocks is missing: they were being written, not acknowledged, and "
                          "keep their old contents");
    }
    return {};
  }

  Result<void> apply(std::span<const std::byte> payload, Data data) {
    RecordReader records(payload);
    for (;;) {
      auto record = records.next();
      if (!record) return record.error();
      if (!*record) return {};
      const bool in_doubt = data == Data::kInDoubt && (**record).kind == Record::Kind::kWrite;
      auto applied = in_doubt ? apply_arrived(**record) : volume_.table.apply(**record);
      if (!applied) return applied;
    }
  }

  /// Applies the blocks of a write that are on the path. An unreadable block counts as written: its
  /// reader gets an error, which is better than an older block.
  Result<void> apply_arrived(const Record& record) {
    const std::uint64_t count = record.sums.size();
    if (record.physical + count > volume_.geometry.data_blocks) {
      return Error(Errc::kCorrupt, "a record exceeds the bounds of its path");
    }
    const std::uint64_t offset = volume_.geometry.data_offset(record.physical);
    const auto bytes = data_.span().first(count * kBlockBytes);
    const auto unreadable = io_.read_salvage(volume_.path, offset, bytes);
    if (!unreadable) return unreadable.error();
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::span<const std::byte, kBlockBytes> block(bytes.data() + i * kBlockBytes,
                                                          kBlockBytes);
      if (unreadable->count(i) == 0 && block_sum(block) != record.sums[i]) {
        ++missing_blocks_;
        continue;
      }
      Record one = record;
      one.block += i;
      one.physical += i;
      one.sums = record.sums.subspan(i, 1);
      if (auto applied = volume_.table.apply(one); !applied) return applied;
    }
    return {};
  }

  /// Whether a later frame of this log exists that was written when the one at the end was durable:
  /// then the latter is damaged, not torn.
  Result<bool> later_frame() {
    const std::uint64_t most = volume_.geometry.frame_bytes_max();
    const std::uint64_t end =
        std::min(volume_.geometry.area_bytes, volume_.head_bytes + (kFramesOpenMax + 1) * most);
    for (AreaReader& copy : copies_) {
      for (std::uint64_t at = volume_.head_bytes; at < end; at += kBlockBytes) {
        const auto piece = copy.at(at, most);
        if (!piece) return piece.error();
        const auto header = open_frame(piece->bytes);
        if (!header || !ours(*header) || header->sequence <= volume_.sequence) continue;
        if (header->safe_frames > volume_.sequence) return true;
      }
    }
    return false;
  }

  BlockingIo& io_;
  Volume& volume_;
  Findings& findings_;
  std::array<AreaReader, kCopies> copies_;
  std::deque<std::vector<std::byte>>
      held_;                       ///< payloads of the last frames, at most kFramesOpenMax
  std::uint64_t safe_frames_ = 0;  ///< number of frames that are certainly durable
  std::uint64_t last_boot_ = 0;    ///< of the last valid frame
  AlignedMemory data_{kSumsMax * kBlockBytes};
  std::uint64_t missing_blocks_ = 0;
};

Result<Superblock> read_superblock(BlockingIo& io, PathIndex which, std::uint64_t offset_bytes) {
  AlignedMemory block(kBlockBytes);
  if (auto read = io.read(which, offset_bytes, block.span(), Coding::kPlain); !read) {
    return read.error();
  }
  return decode_superblock(std::span<const std::byte, kBlockBytes>(block.span()));
}

/// Checks that both ends of a path are blank. @return kCorrupt: they are not.
Result<void> check_blank(BlockingIo& io, PathIndex which) {
  const std::uint64_t size = io.device().paths()[which.value()].size_bytes;
  const std::uint64_t length = std::min(size, kBlankBytes);
  AlignedMemory memory(length);
  for (const std::uint64_t offset : {std::uint64_t{0}, size - length}) {
    if (auto read = io.read(which, offset, memory.span(), Coding::kPlain); !read) {
      return read.error();
    }
    const auto bytes = memory.span();
    const auto at = std::find_if(bytes.begin(), bytes.end(),
                                 [](std::byte byte) { return byte != std::byte{0}; });
    if (at == bytes.end()) continue;
    const auto place = offset + static_cast<std::uint64_t>(at - bytes.begin());
    return foreign_path("not a flash path of HyperOffload, and not blank: it has data at byte " +
                        std::to_string(place));
  }
  return {};
}

struct Chosen {
  Superblock super;
  std::array<bool, kCopies> stands{};  ///< the copies with the same contents
};

/// Chooses the better of both superblocks.
Result<Chosen> choose_superblock(BlockingIo& io, PathIndex which, Findings& findings) {
  const std::uint64_t size = io.device().paths()[which.value()].size_bytes;
  if (const auto planned = plan_geometry(size); !planned) return planned.error();
  auto first = read_superblock(io, which, 0);
  // A path that has grown has its second copy at its old end.
  const std::uint64_t end = first && first->path_bytes <= size ? first->path_bytes : size;
  auto second = read_superblock(io, which, end - kBlockBytes);
  if (!second && second.error().code() == Errc::kDeadline) return second.error();
  if (!first && !second) {
    const bool first_says_more = first.error().code() != Errc::kNotFound;
    if (!first_says_more && second.error().code() == Errc::kNotFound) {
      if (auto blank = check_blank(io, which); !blank) return blank.error();
    }
    return first_says_more ? first.error() : second.error();
  }
  if (!first) findings.push_back("the first superblock: " + first.error().context());
  if (!second) findings.push_back("the second superblock: " + second.error().context());
  if (first && second && first->epoch != second->epoch) {
    findings.push_back("the superblocks have different epochs");
  }
  const bool take_second = second && (!first || second->epoch > first->epoch);
  const Superblock& super = take_second ? *second : *first;
  if (super.path_bytes > size) {
    return Error(Errc::kCorrupt, "it has " + std::to_string(size) + " bytes, but had " +
                                     std::to_string(super.path_bytes) + " when it was formatted");
  }
  // The log of one start may have the epoch of an interrupted one. Leftovers of a first start also
  // have its salt, 0, but another set.
  const auto same = [&super](const Result<Superblock>& copy) {
    return copy && copy->set == super.set && copy->epoch == super.epoch && copy->salt == super.salt;
  };
  return Chosen{super, {same(first), same(second)}};
}

/// Whether the device has the key that the path was formatted with. @return kConflict: what to do.
Result<void> check_key(const Superblock& super, const DevicePath& path) {
  if (super.key == path.key) return {};
  if (super.key == KeyCheck{}) {
    return Error(Errc::kConflict,
                 "it is not encrypted, and has a key_file: remove that from the configuration, or "
                 "clear the path so that it is formatted anew");
  }
  if (path.key == KeyCheck{}) {
    return Error(Errc::kConflict, "it is encrypted: name its key_file in the configuration");
  }
  return Error(Errc::kConflict, "it is encrypted with another key than the one in its key_file");
}

/// As recover(), without the path's name in errors and findings.
Result<Volume> recover_path(BlockingIo& io, PathIndex which, Findings& findings) {
  const auto chosen = choose_superblock(io, which, findings);
  if (!chosen) return chosen.error();
  const auto keyed = check_key(chosen->super, io.device().paths()[which.value()]);
  if (!keyed) return keyed.error();
  const auto geometry = plan_geometry(chosen->super.path_bytes);
  HO_CHECK(geometry.ok());
  Volume volume(which, io.device().paths()[which.value()].name, chosen->super, *geometry);
  volume.super_stands = chosen->stands;
  if (auto replayed = Replay(io, volume, findings).run(); !replayed) {
    return replayed.error();
  }
  auto space = volume.table.finish();
  if (!space) return space.error();
  volume.space = std::move(*space);
  for (const auto& [id, shard] : volume.table.shards()) {
    if (id.value() >= volume.next_extent) {
      return Error(Errc::kCorrupt, "an extent has an id that was never assigned");
    }
  }
  return volume;
}

}  // namespace

void Volume::count_written(std::uint64_t bytes, std::uint32_t day) {
  if (day > wear.day) {
    wear.day = day;
    wear.day_bytes = 0;
  }
  wear.day_bytes += bytes;
  wear.total_bytes += bytes;
  unsaved_wear_bytes += bytes;
}

Result<Volume> recover(BlockingIo& io, PathIndex which, Findings& findings) {
  const auto& [name, size_bytes, key] = io.device().paths()[which.value()];
  Findings here;
  auto volume = recover_path(io, which, here);
  for (const std::string& one : here) findings.push_back(name + ": " + one);
  if (!volume) return volume.error().at(name);
  const std::uint64_t used = volume->geometry.path_bytes;
  HO_CHECK(used <= size_bytes);
  volume->unused_bytes = size_bytes - used;
  if (volume->unused_bytes > 0) {
    findings.push_back(name + ": has grown from " + format_bytes(used) + " to " +
                       format_bytes(size_bytes) +
                       " since it was formatted; what was added is not used");
  }
  return volume;
}

Result<void> repair_superblocks(BlockingIo& io, Volume& volume) {
  AlignedMemory block(kBlockBytes);
  encode_superblock(volume.super, std::span<std::byte, kBlockBytes>(block.span()));
  for (std::size_t copy = 0; copy < kCopies; ++copy) {
    if (volume.super_stands[copy]) continue;
    const std::uint64_t offset = volume.geometry.super_offset(copy);
    auto written = io.write(volume.path, offset, block.span(), Coding::kPlain);
    if (!written) return written;
    if (auto safe = io.sync(volume.path); !safe) return safe;
    volume.super_stands[copy] = true;
  }
  return {};
}

Result<Volume> format(BlockingIo& io, PathIndex which, const SetId& set, std::uint16_t path_count) {
  const DevicePath& path = io.device().paths()[which.value()];
  const auto geometry = plan_geometry(path.size_bytes);
  if (!geometry) return geometry.error().at(path.name);
  Superblock super;
  super.set = set;
  super.path_index = which.value();
  super.path_count = path_count;
  super.path_bytes = geometry->path_bytes;
  super.epoch = 1;
  super.key = path.key;
  AlignedMemory block(kBlockBytes);
  encode_superblock(super, std::span<std::byte, kBlockBytes>(block.span()));
  for (std::size_t copy = 0; copy < kCopies; ++copy) {
    auto written = io.write(which, geometry->super_offset(copy), block.span(), Coding::kPlain);
    if (!written) return written.error();
    if (auto safe = io.sync(which); !safe) return safe.error();
  }
  return Volume(which, path.name, super, *geometry);
}

}  // namespace ho::flash
