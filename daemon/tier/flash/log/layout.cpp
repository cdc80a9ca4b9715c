#include "daemon/tier/flash/log/layout.hpp"

#include <algorithm>
#include <cstring>

#include "common/base/check.hpp"
#include "common/base/checksum.hpp"
#include "common/text/utf8.hpp"

namespace ho::flash {

namespace {

constexpr std::uint64_t kSuperMagic =
    0x31306873616c6648;  // "Hflash01" in the byte order of the path
constexpr std::uint64_t kFrameMagic = 0x3130656d61726648;  // "Hframe01"
constexpr std::size_t kSumBytes = sizeof(std::uint64_t);
constexpr std::size_t kSuperSumAt = 64;  // after the fields
constexpr std::size_t kSuperKeyAt = 72;  // after that, zeros on a plain path; the rest is zero
constexpr std::size_t kFrameSumAt = kFrameHeaderBytes - kSumBytes;

/// Writes little-endian numbers in sequence. All supported machines are little-endian.
class Put {
 public:
  explicit Put(std::span<std::byte> out) : out_(out) {}
  template <typename T>
  Put& number(T value) {
    return bytes(std::as_bytes(std::span(&value, 1)));
  }
  Put& bytes(std::span<const std::byte> from) {
    HO_CHECK(at_ + from.size() <= out_.size());
    if (!from.empty()) std::memcpy(out_.data() + at_, from.data(), from.size());
    at_ += from.size();
    return *this;
  }

 private:
  std::span<std::byte> out_;
  std::size_t at_ = 0;
};

class Get {
 public:
  explicit Get(std::span<const std::byte> from) : from_(from) {}
  template <typename T>
  Get& number(T& value) {
    return bytes(std::as_writable_bytes(std::span(&value, 1)));
  }
  Get& bytes(std::span<std::byte> into) {
    HO_CHECK(at_ + into.size() <= from_.size());
    std::memcpy(into.data(), from_.data() + at_, into.size());
    at_ += into.size();
    return *this;
  }

 private:
  std::span<const std::byte> from_;
  std::size_t at_ = 0;
};

std::uint64_t read_sum(std::span<const std::byte> bytes, std::size_t at) {
  std::uint64_t sum = 0;
  Get(bytes.subspan(at, kSumBytes)).number(sum);
  return sum;
}

/// The checksum of `bytes`, with the eight bytes at `sum_at` as zeros.
std::uint64_t sum_around(std::span<const std::byte> bytes, std::size_t sum_at) {
  const std::array<std::byte, kSumBytes> zeros{};
  ChecksumStream stream;
  stream.update(bytes.first(sum_at));
  stream.update(zeros);
  stream.update(bytes.subspan(sum_at + kSumBytes));
  return stream.digest();
}

using TextField = std::array<std::byte, kTextBytesMax>;

TextField text_field(const std::string& text) {
  HO_CHECK(text.size() <= kTextBytesMax);
  TextField out{};
  std::memcpy(out.data(), text.data(), text.size());
  return out;
}

/// @return nothing: not zero-padded UTF-8.
std::optional<std::string> read_text(Get& from) {
  std::array<char, kTextBytesMax> field{};
  from.bytes(std::as_writable_bytes(std::span(field)));
  const auto end = std::find(field.begin(), field.end(), '\0');
  const bool padded = std::all_of(end, field.end(), [](char c) { return c == '\0'; });
  std::string text(field.begin(), end);
  if (!padded || utf8_prefix(text, kTextBytesMax).size() != text.size()) return std::nullopt;
  return text;
}

std::uint64_t seconds(std::chrono::sys_seconds time) {
  return static_cast<std::uint64_t>(time.time_since_epoch().count());
}

std::chrono::sys_seconds read_time(Get& from) {
  std::uint64_t count = 0;
  from.number(count);
  // A number that no clock has counts as the last moment that fits.
  count = std::min<std::uint64_t>(count, UINT32_MAX);
  return std::chrono::sys_seconds(std::chrono::seconds(count));
}

/// Reads the body of a kCreate. @return false: malformed.
bool read_create(Record& record, std::span<const std::byte> body) {
  Get from(body);
  from.number(record.length_bytes).bytes(record.about.access);
  record.about.created = read_time(from);
  record.about.used = read_time(from);
  const auto owner = read_text(from);
  const auto label = read_text(from);
  if (!owner || !label || record.length_bytes == 0) return false;
  record.about.owner = *owner;
  record.about.label = *label;
  return true;
}

bool all_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace

std::uint64_t Geometry::super_offset(std::size_t copy) const {
  HO_CHECK(copy < kCopies);
  return copy == 0 ? 0 : path_bytes - kBlockBytes;
}

std::uint64_t Geometry::area_offset(std::size_t area, std::size_t copy) const {
  HO_CHECK(area < 2 && copy < kCopies);
  if (copy == 0) return kBlockBytes + area * area_bytes;
  return path_bytes - kBlockBytes - (2 - area) * area_bytes;
}

std::uint64_t Geometry::data_offset(std::uint32_t block) const {
  HO_CHECK(block < data_blocks);
  return kBlockBytes + 2 * area_bytes + block * kBlockBytes;
}

std::uint64_t Geometry::frame_bytes_max() const {
  return std::min(kDeviceOpBytesMax, area_bytes / 16 / kBlockBytes * kBlockBytes);
}

Result<Geometry> plan_geometry(std::uint64_t path_bytes) {
  if (path_bytes < kPathBytesMin) {
    return Error(Errc::kInvalidArgument, "too small: " + format_bytes(path_bytes) + ", at least " +
                                             format_bytes(kPathBytesMin) + " are needed");
  }
  if (path_bytes > kPathBytesMax) {
    return Error(Errc::kInvalidArgument, "too large: " + format_bytes(path_bytes) + ", at most " +
                                             format_bytes(kPathBytesMax));
  }
  Geometry out;
  out.path_bytes = path_bytes / kBlockBytes * kBlockBytes;
  const std::uint64_t blocks = out.path_bytes / kBlockBytes;
  out.area_bytes = std::max(kAreaBytesMin, align_up(blocks * kAreaBytesPerBlock, kBlockBytes));
  const std::uint64_t metadata = 2 * kBlockBytes + 2 * kCopies * out.area_bytes;
  HO_CHECK(metadata < out.path_bytes);
  out.data_blocks = static_cast<std::uint32_t>((out.path_bytes - metadata) / kBlockBytes);
  return out;
}

void encode_superblock(const Superblock& super, std::span<std::byte, kBlockBytes> out) {
  std::fill(out.begin(), out.end(), std::byte{0});
  Put(out)
      .number(kSuperMagic)
      .number(super.key == KeyCheck{} ? kFormatVersion : kFormatVersionEncrypted)
      .number(super.path_index)
      .number(super.path_count)
      .bytes(super.set)
      .number(super.path_bytes)
      .number(super.epoch)
      .number(super.snapshot_frames)
      .number(super.salt);
  Put(out.subspan(kSuperKeyAt)).bytes(super.key);
  Put(out.subspan(kSuperSumAt)).number(sum_around(out, kSuperSumAt));
}

Error foreign_path(const std::string& what) {
  return Error(Errc::kCorrupt, what +
                                   "; to use it for the pool, clear it first (a device: blkdiscard "
                                   "--zeroout; a file: create it again)");
}

Result<Superblock> decode_superblock(std::span<const std::byte, kBlockBytes> block) {
  if (all_zero(block)) return Error(Errc::kNotFound, "blank");
  std::uint64_t magic = 0;
  std::uint32_t version = 0;
  Superblock out;
  Get(block)
      .number(magic)
      .number(version)
      .number(out.path_index)
      .number(out.path_count)
      .bytes(out.set)
      .number(out.path_bytes)
      .number(out.epoch)
      .number(out.snapshot_frames)
      .number(out.salt);
  if (magic != kSuperMagic) {
    return foreign_path("not a flash path of HyperOffload, and not blank");
  }
  Get(block.subspan(kSuperKeyAt)).bytes(out.key);
  const bool known = version == kFormatVersion || version == kFormatVersionEncrypted;
  if (!known) {
    return Error(Errc::kUnsupported, "format version " + std::to_string(version) +
                                         "; this program knows " + std::to_string(kFormatVersion) +
                                         " and, encrypted, " +
                                         std::to_string(kFormatVersionEncrypted));
  }
  if (read_sum(block, kSuperSumAt) != sum_around(block, kSuperSumAt)) {
    return Error(Errc::kCorrupt, "the superblock does not match its checksum");
  }
  const auto geometry = plan_geometry(out.path_bytes);
  if ((out.key == KeyCheck{}) != (version == kFormatVersion)) {
    return Error(Errc::kCorrupt, "the superblock has invalid fields");
  }
  if (!geometry || geometry->path_bytes != out.path_bytes || out.path_count == 0 ||
      out.path_count > kPathsMax || out.path_index >= out.path_count ||
      out.snapshot_frames > geometry->area_bytes / kBlockBytes) {
    return Error(Errc::kCorrupt, "the superblock has invalid fields");
  }
  return out;
}

std::uint64_t seal_frame(const FrameHeader& header, std::span<std::byte> frame) {
  const std::uint64_t used = kFrameHeaderBytes + header.payload_bytes;
  const std::uint64_t total = frame_bytes(header.payload_bytes);
  HO_CHECK(total <= frame.size());
  const auto head = frame.first(kFrameHeaderBytes);
  std::fill(head.begin(), head.end(), std::byte{0});
  Put(head)
      .number(kFrameMagic)
      .number(header.payload_bytes)
      .number(header.path_index)
      .number(std::uint16_t{0})
      .bytes(header.set)
      .number(header.epoch)
      .number(header.salt)
      .number(header.sequence)
      .number(header.next_extent)
      .number(header.wear.day)
      .number(std::uint32_t{0})
      .number(header.wear.day_bytes)
      .number(header.wear.total_bytes)
      .number(header.safe_frames)
      .number(header.boot);
  const auto padding = frame.subspan(used, total - used);
  std::fill(padding.begin(), padding.end(), std::byte{0});
  Put(frame.subspan(kFrameSumAt)).number(sum_around(frame.first(total), kFrameSumAt));
  return total;
}

Result<FrameHeader> read_frame_header(std::span<const std::byte> bytes) {
  if (bytes.size() < kBlockBytes) return Error(Errc::kCorrupt, "a frame is truncated");
  std::uint64_t magic = 0;
  std::uint16_t zero16 = 0;
  std::uint32_t zero32 = 0;
  FrameHeader out;
  Get(bytes)
      .number(magic)
      .number(out.payload_bytes)
      .number(out.path_index)
      .number(zero16)
      .bytes(out.set)
      .number(out.epoch)
      .number(out.salt)
      .number(out.sequence)
      .number(out.next_extent)
      .number(out.wear.day)
      .number(zero32)
      .number(out.wear.day_bytes)
      .number(out.wear.total_bytes)
      .number(out.safe_frames)
      .number(out.boot);
  if (magic != kFrameMagic) return Error(Errc::kCorrupt, "there is no frame");
  return out;
}

Result<FrameHeader> open_frame(std::span<const std::byte> bytes) {
  auto header = read_frame_header(bytes);
  if (!header) return header.error();
  const std::uint64_t total = frame_bytes(header->payload_bytes);
  if (total > bytes.size()) return Error(Errc::kCorrupt, "a frame is truncated");
  if (read_sum(bytes, kFrameSumAt) != sum_around(bytes.first(total), kFrameSumAt)) {
    return Error(Errc::kCorrupt, "a frame does not match its checksum");
  }
  return header;
}

bool RecordWriter::put(const Record& record) {
  using Kind = Record::Kind;
  const bool list =
      record.kind == Kind::kMap || record.kind == Kind::kWrite || record.kind == Kind::kSums;
  const std::size_t count = record.kind == Kind::kMap ? record.runs.size() : record.sums.size();
  const std::size_t length = list                           ? kListHeadBytes + 8 * count
                             : record.kind == Kind::kCreate ? kCreateBytes
                             : record.kind == Kind::kUsed   ? kUsedBytes
                                                            : kFreeBytes;
  if (length > payload_.size() - used_) return false;
  Put out(payload_.subspan(used_, length));
  out.number(record.kind).number(std::uint16_t{0}).number(static_cast<std::uint32_t>(length));
  out.number(record.extent.value());
  if (record.kind == Kind::kCreate) {
    const ExtentAbout& about = record.about;
    out.number(record.length_bytes).bytes(about.access);
    out.number(seconds(about.created)).number(seconds(about.used));
    out.bytes(text_field(about.owner)).bytes(text_field(about.label));
  } else if (record.kind == Kind::kUsed) {
    out.number(seconds(record.about.used));
  } else if (list) {
    HO_CHECK(count > 0 && (record.kind == Kind::kMap || count <= kSumsMax));
    out.number(record.block).number(static_cast<std::uint32_t>(count));
    out.number(std::uint64_t{record.physical});
    out.bytes(std::as_bytes(record.sums));
    for (const BlockRun& run : record.runs) {
      HO_CHECK(run.count > 0 && run.count <= kRunBlocksMax);
      out.number((std::uint64_t{run.first} << 24U) | (run.count - 1));
    }
  }
  used_ += length;
  return true;
}

bool RecordReader::read_list(Record& record, std::span<const std::byte> body) {
  std::uint32_t count = 0;
  std::uint64_t physical = 0;
  Get in(body);
  in.number(record.block).number(count).number(physical);
  if (count == 0 || body.size() != 16 + std::size_t{8} * count) return false;
  if (physical > UINT32_MAX) return false;
  record.physical = static_cast<std::uint32_t>(physical);
  if (record.kind != Record::Kind::kMap) {
    if (count > kSumsMax) return false;
    sums_.resize(count);
    in.bytes(std::as_writable_bytes(std::span(sums_)));
    record.sums = sums_;
    // 0 means "never written" in a table: a snapshot uses it for gaps, a write cannot.
    return record.kind == Record::Kind::kSums ||
           std::find(sums_.begin(), sums_.end(), 0U) == sums_.end();
  }
  runs_.clear();
  for (std::uint32_t i = 0; i < count; ++i) {
    std::uint64_t packed = 0;
    in.number(packed);
    if ((packed >> 24U) > UINT32_MAX) return false;
    runs_.push_back({static_cast<std::uint32_t>(packed >> 24U),
                     static_cast<std::uint32_t>(packed & (kRunBlocksMax - 1)) + 1});
  }
  record.runs = runs_;
  return true;
}

Result<std::optional<Record>> RecordReader::next() {
  if (left_.empty()) return std::optional<Record>();
  const Error broken(Errc::kCorrupt, "a record of the log is malformed");
  if (left_.size() < kFreeBytes) return broken;
  Record out;
  std::uint16_t zero = 0;
  std::uint32_t length = 0;
  std::uint64_t extent = 0;
  Get(left_).number(out.kind).number(zero).number(length).number(extent);
  if (length < kFreeBytes || length > left_.size()) return broken;
  out.extent = ExtentId(extent);
  const auto body = left_.subspan(kFreeBytes, length - kFreeBytes);
  bool sound = extent != 0 && zero == 0;
  switch (out.kind) {
    case Record::Kind::kCreate:
      sound = sound && length == kCreateBytes;
      if (!sound) break;
      sound = read_create(out, body);
      break;
    case Record::Kind::kMap:
    case Record::Kind::kWrite:
    case Record::Kind::kSums:
      sound = sound && length >= kListHeadBytes && read_list(out, body);
      break;
    case Record::Kind::kFree: sound = sound && length == kFreeBytes; break;
    case Record::Kind::kUsed:
      sound = sound && length == kUsedBytes;
      if (sound) {
        Get from(body);
        out.about.used = read_time(from);
      }
      break;
    default: sound = false;
  }
  if (!sound) return broken;
  left_ = left_.subspan(length);
  return std::optional<Record>(out);
}

}  // namespace ho::flash
