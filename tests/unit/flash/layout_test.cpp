#include <catch2/catch.hpp>
#include <cstring>
#include <set>
#include <vector>

#include "common/base/prng.hpp"
#include "daemon/tier/flash/log/layout.hpp"
#include "daemon/tier/flash/log/space.hpp"
#include "daemon/tier/flash/log/table.hpp"

namespace {

using namespace ho;
using namespace ho::flash;

Superblock some_superblock() {
  Superblock super;
  super.set[3] = std::byte{9};
  super.path_index = 1;
  super.path_count = 3;
  super.path_bytes = 8 * kMiB;
  super.epoch = 77;
  super.snapshot_frames = 2;
  super.salt = 1234;
  return super;
}

std::vector<std::byte> some_frame() {
  std::vector<std::byte> frame(64 * kKiB);
  const auto payload = std::span<std::byte>(frame).subspan(kFrameHeaderBytes);
  RecordWriter records(payload);
  const std::vector<std::uint64_t> sums(188, 5);
  Record record;
  record.kind = Record::Kind::kWrite;
  record.extent = ExtentId(4);
  record.sums = sums;
  REQUIRE(records.put(record));
  FrameHeader header;
  header.sequence = 6;
  header.payload_bytes = static_cast<std::uint32_t>(records.bytes());
  frame.resize(seal_frame(header, frame));
  return frame;
}

}  // namespace

TEST_CASE("flash layout: a superblock decodes as it was encoded") {
  std::vector<std::byte> block(kBlockBytes);
  const std::span<std::byte, kBlockBytes> span(block.data(), kBlockBytes);
  encode_superblock(some_superblock(), span);
  const auto back = decode_superblock(span);
  REQUIRE(back.ok());
  CHECK(back->set == some_superblock().set);
  CHECK(back->path_index == 1);
  CHECK(back->path_count == 3);
  CHECK(back->path_bytes == 8 * kMiB);
  CHECK(back->epoch == 77);
  CHECK(back->snapshot_frames == 2);
  CHECK(back->salt == 1234);
}

TEST_CASE("flash layout: a superblock with any bit flipped is refused") {
  std::vector<std::byte> block(kBlockBytes);
  const std::span<std::byte, kBlockBytes> span(block.data(), kBlockBytes);
  encode_superblock(some_superblock(), span);
  for (std::size_t bit = 0; bit < 8 * kBlockBytes; ++bit) {
    block[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    if (decode_superblock(span).ok()) FAIL("bit " << bit);
    block[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
  }
}

TEST_CASE("flash layout: a superblock of zeros is blank, foreign bytes are not") {
  std::vector<std::byte> block(kBlockBytes);
  const std::span<std::byte, kBlockBytes> span(block.data(), kBlockBytes);
  CHECK(decode_superblock(span).error().code() == Errc::kNotFound);
  block[100] = std::byte{1};
  CHECK(decode_superblock(span).error().code() == Errc::kCorrupt);
}

TEST_CASE("flash layout: another format version is named and refused") {
  std::vector<std::byte> block(kBlockBytes);
  const std::span<std::byte, kBlockBytes> span(block.data(), kBlockBytes);
  encode_superblock(some_superblock(), span);
  block[8] = std::byte{kFormatVersionEncrypted + 1};
  const auto refused = decode_superblock(span);
  CHECK(refused.error().code() == Errc::kUnsupported);
  CHECK(refused.error().context() == "format version 7; this program knows 5 and, encrypted, 6");
  block[8] = std::byte{kFormatVersion - 1};
  CHECK(decode_superblock(span).error().code() == Errc::kUnsupported);
}

TEST_CASE("flash layout: a frame's header decodes as it was encoded") {
  FrameHeader header;
  header.set[5] = std::byte{4};
  header.path_index = 2;
  header.epoch = 3;
  header.salt = 4;
  header.sequence = 5;
  header.next_extent = 6;
  header.wear = {7, 8, 9};
  header.safe_frames = 10;
  header.boot = 11;
  std::vector<std::byte> frame(kBlockBytes);
  REQUIRE(seal_frame(header, frame) == kBlockBytes);
  const auto back = open_frame(frame);
  REQUIRE(back.ok());
  CHECK(back->set == header.set);
  CHECK(back->path_index == 2);
  CHECK(back->epoch == 3);
  CHECK(back->salt == 4);
  CHECK(back->sequence == 5);
  CHECK(back->next_extent == 6);
  CHECK(back->wear.day == 7);
  CHECK(back->wear.day_bytes == 8);
  CHECK(back->wear.total_bytes == 9);
  CHECK(back->safe_frames == 10);
  CHECK(back->boot == 11);
  CHECK(frame[96] == std::byte{11});
}

TEST_CASE("flash layout: a frame truncated anywhere or with any bit flipped is refused") {
  auto frame = some_frame();
  REQUIRE(open_frame(frame).ok());
  for (std::size_t length = 0; length < frame.size(); length += 64) {
    CHECK_FALSE(open_frame(std::span(frame).first(length)).ok());
  }
  for (std::size_t bit = 0; bit < 8 * frame.size(); bit += 3) {
    frame[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    if (open_frame(frame).ok()) FAIL("bit " << bit);
    frame[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
  }
}

TEST_CASE("flash layout: records decode as they were encoded, truncated ones are refused") {
  std::vector<std::byte> memory(8192);
  RecordWriter out(memory);
  const std::vector<std::uint64_t> sums{3, 4, UINT64_MAX};
  const std::vector<BlockRun> runs{{5, 7}, {UINT32_MAX, 1}, {0, kRunBlocksMax}};
  ExtentAbout about;
  about.access.fill(std::byte{7});
  about.owner = "uid 1000";
  about.label = std::string(kTextBytesMax, 'x');
  about.created = std::chrono::sys_seconds(std::chrono::seconds(100));
  about.used = std::chrono::sys_seconds(std::chrono::seconds(200));
  ExtentAbout later;
  later.used = std::chrono::sys_seconds(std::chrono::seconds(300));
  Record create{Record::Kind::kCreate, ExtentId(9), 12345, about, 0, 0, {}, {}};
  Record map{Record::Kind::kMap, ExtentId(9), 0, {}, 17, 0, {}, runs};
  Record write{Record::Kind::kWrite, ExtentId(9), 0, {}, 18, 19, sums, {}};
  Record used{Record::Kind::kUsed, ExtentId(9), 0, later, 0, 0, {}, {}};
  Record free{Record::Kind::kFree, ExtentId(9), 0, {}, 0, 0, {}, {}};
  for (const Record& record : {create, map, write, used, free}) REQUIRE(out.put(record));
  const auto payload = std::span(memory).first(out.bytes());
  RecordReader in(payload);
  auto back = in.next();
  REQUIRE((back.ok() && back->has_value()));
  CHECK((**back).about == about);
  CHECK((**back).length_bytes == 12345);
  back = in.next();
  REQUIRE((back.ok() && back->has_value()));
  CHECK((**back).block == 17);
  REQUIRE((**back).runs.size() == 3);
  CHECK((**back).runs[1].first == UINT32_MAX);
  CHECK((**back).runs[2].count == kRunBlocksMax);
  back = in.next();
  REQUIRE((back.ok() && back->has_value()));
  CHECK((**back).physical == 19);
  CHECK(std::vector<std::uint64_t>((**back).sums.begin(), (**back).sums.end()) == sums);
  back = in.next();
  REQUIRE((back.ok() && back->has_value()));
  CHECK((**back).about.used == later.used);
  back = in.next();
  REQUIRE((back.ok() && back->has_value()));
  CHECK((**back).kind == Record::Kind::kFree);
  back = in.next();
  REQUIRE(back.ok());
  CHECK_FALSE(back->has_value());
  const std::set<std::size_t> whole{0, 136, 192, 248, 272, 288};
  for (std::size_t length = 0; length < payload.size(); ++length) {
    if (whole.count(length) != 0) continue;
    RecordReader cut(payload.first(length));
    Result<std::optional<Record>> each = cut.next();
    while (each.ok() && each->has_value()) each = cut.next();
    if (each.ok()) FAIL("cut at " << length);
  }
}

namespace {

/// A table with random extents: places and checksums in runs of random lengths.
Table random_table(Prng& random, const Geometry& geometry, std::uint64_t extents) {
  Table table(0, 1, geometry.data_blocks);
  std::vector<std::uint32_t> places(geometry.data_blocks);
  for (std::uint32_t i = 0; i < geometry.data_blocks; ++i) places[i] = i;
  const std::uint64_t together = 1 + random.below(4);
  for (std::uint64_t i = 0; i < places.size(); i += together) {
    std::swap(places[i], places[random.below(places.size())]);
  }
  std::uint32_t next = 0;
  for (std::uint64_t id = 1; id <= extents; ++id) {
    Shard shard;
    shard.logged = true;
    const std::uint64_t blocks =
        id == extents ? geometry.data_blocks - next
                      : random.below((geometry.data_blocks - next) / (extents - id + 1)) + 1;
    shard.info = {ExtentId(id), blocks * kBlockBytes, Policy::kDurable, 0, {}};
    const std::uint64_t gap = random.below(8);
    const std::uint64_t run = 1 + random.below(6);
    for (std::uint64_t at = 0; at < blocks; ++at) {
      shard.physical.push_back(places[next++]);
      shard.sums.push_back(at % (gap + run) < run ? 1 + random.below(UINT64_MAX) : 0);
    }
    if (shard.sums.empty()) break;
    table.shards().emplace(ExtentId(id), std::move(shard));
  }
  return table;
}

}  // namespace

TEST_CASE("flash layout: a snapshot equals its table, and is within the bound of its extents") {
  Prng random(5);
  std::uint64_t fullest = 0;  // percent of the bound
  for (int turn = 0; turn < 300; ++turn) {
    const auto plan = *plan_geometry(kMiB + random.below(24) * kMiB);
    const std::uint64_t extents = 1 + random.below(turn % 2 == 0 ? 4 : 60);
    const Table table = random_table(random, plan, extents);
    std::uint64_t blocks = 0;
    for (const auto& [id, shard] : table.shards()) blocks += shard.blocks();
    const std::uint64_t bound = Table::snapshot_bytes(table.shards().size(), blocks);
    Table back(0, 1, plan.data_blocks);
    std::vector<std::byte> memory(plan.frame_bytes_max() - kFrameHeaderBytes);
    SnapshotCursor cursor;
    std::uint64_t records = 0;
    std::uint64_t on_path = 0;
    for (bool more = true; more;) {
      RecordWriter out(memory);
      more = cursor.put(table, out);
      if (more) REQUIRE(out.bytes() + kCreateBytes > memory.size());
      records += out.bytes();
      on_path += frame_bytes(out.bytes());
      RecordReader in(std::span<const std::byte>(memory).first(out.bytes()));
      for (auto record = in.next(); !record.ok() || record->has_value(); record = in.next()) {
        REQUIRE(record.ok());
        REQUIRE(back.apply(**record).ok());
      }
    }
    REQUIRE(records <= bound);
    REQUIRE(on_path <=
            Table::snapshot_frames_bytes(table.shards().size(), blocks, plan.frame_bytes_max()));
    if (bound <= plan.snapshot_bytes_max()) {
      REQUIRE(on_path + plan.frame_bytes_max() <= plan.area_bytes);
      fullest = std::max(fullest, 100 * bound / plan.snapshot_bytes_max());
    }
    for (const auto& [id, shard] : table.shards()) {
      const Shard* const other = back.find(id);
      REQUIRE(other != nullptr);
      REQUIRE(other->physical == shard.physical);
      REQUIRE(other->sums == shard.sums);
    }
  }
  CHECK(fullest > 80);
}

TEST_CASE("flash layout: the largest admitted table leaves room for the longest frame in its log") {
  Prng random(7);
  for (int turn = 0; turn < 2000; ++turn) {
    const auto plan =
        *plan_geometry((kPathBytesMin << random.below(24)) + random.below(kPathBytesMin));
    const std::uint64_t extents = plan.snapshot_bytes_max() / Table::snapshot_bytes(1, 0);
    const std::uint64_t most = plan.frame_bytes_max();
    REQUIRE(Table::snapshot_frames_bytes(extents, 0, most) + most <= plan.area_bytes);
  }
  // Long frames waste almost nothing: all but the eighth that create() reserves is usable.
  const auto large = *plan_geometry(64 * kGiB);
  const std::uint64_t extents = large.snapshot_bytes_max() / Table::snapshot_bytes(1, 0);
  const std::uint64_t table = Table::snapshot_frames_bytes(extents, 0, large.frame_bytes_max());
  CHECK(large.area_bytes - table > 47 * kMiB);
}

TEST_CASE("flash layout: only the checksums of a snapshot may say that a block was never written") {
  std::vector<std::byte> memory(4096);
  const std::vector<std::uint64_t> sums{3, 0, 5};
  for (const auto kind : {Record::Kind::kSums, Record::Kind::kWrite}) {
    RecordWriter out(memory);
    REQUIRE(out.put({kind, ExtentId(9), 0, {}, 18, 19, sums, {}}));
    RecordReader in(std::span<const std::byte>(memory).first(out.bytes()));
    CHECK(in.next().ok() == (kind == Record::Kind::kSums));
  }
}

TEST_CASE("flash layout: a text that is not padded UTF-8 makes its record malformed") {
  std::vector<std::byte> memory(4096);
  RecordWriter out(memory);
  ExtentAbout about;
  about.label = "\xc3\xa9";
  REQUIRE(out.put({Record::Kind::kCreate, ExtentId(9), 4096, about, 0, 0, {}, {}}));
  const auto record = std::span<const std::byte>(memory).first(out.bytes());
  constexpr std::size_t kLabelAt = kCreateBytes - kTextBytesMax;
  REQUIRE(memory[kLabelAt] == std::byte{0xc3});
  CHECK(RecordReader(record).next().ok());
  memory[kLabelAt + 5] = std::byte{'x'};
  CHECK_FALSE(RecordReader(record).next().ok());
  memory[kLabelAt + 5] = std::byte{0};
  memory[kLabelAt + 1] = std::byte{'x'};
  CHECK_FALSE(RecordReader(record).next().ok());
}

TEST_CASE("flash layout: the regions of a path lie side by side") {
  for (const std::uint64_t bytes : {kMiB, kMiB + 4096, 100 * kMiB, 5 * kGiB + 123, kPathBytesMax}) {
    const auto plan = plan_geometry(bytes);
    REQUIRE(plan.ok());
    std::uint64_t at = 0;
    CHECK(plan->super_offset(0) == at);
    at += kBlockBytes;
    CHECK(plan->area_offset(0, 0) == at);
    at += plan->area_bytes;
    CHECK(plan->area_offset(1, 0) == at);
    at += plan->area_bytes;
    CHECK(plan->data_offset(0) == at);
    at += std::uint64_t{plan->data_blocks} * kBlockBytes;
    CHECK(plan->area_offset(0, 1) == at);
    at += plan->area_bytes;
    CHECK(plan->area_offset(1, 1) == at);
    at += plan->area_bytes;
    CHECK(plan->super_offset(1) == at);
    at += kBlockBytes;
    CHECK(plan->path_bytes == at);
  }
  CHECK(plan_geometry(kMiB - 1).error().code() == Errc::kInvalidArgument);
}

TEST_CASE("flash striping: every block of an extent has one place, and the place gives it back") {
  for (std::uint16_t paths = 1; paths <= 4; ++paths) {
    for (const std::uint64_t blocks : {1U, 255U, 256U, 257U, 1000U, 2048U}) {
      const Striping striping(ExtentId(blocks), paths);
      std::set<std::pair<std::uint16_t, std::uint32_t>> places;
      for (std::uint64_t block = 0; block < blocks; ++block) {
        const auto place = striping.place(block);
        places.emplace(place.path.value(), place.block);
        CHECK(place.block < striping.shard_blocks(place.path, blocks * kBlockBytes));
        CHECK(striping.extent_block(place.path, place.block) == block);
      }
      std::uint64_t sum = 0;
      for (std::uint16_t path = 0; path < paths; ++path) {
        sum += striping.shard_blocks(PathIndex(path), blocks * kBlockBytes);
      }
      CHECK(places.size() == blocks);
      CHECK(sum == blocks);
    }
  }
}

TEST_CASE("flash space: random takes and gives never use a block twice") {
  Prng random(3);
  Space space(1000);
  std::vector<BlockRun> held;
  std::vector<bool> used(1000, false);
  for (int turn = 0; turn < 20000; ++turn) {
    if (random.below(2) == 0) {
      const auto wanted = static_cast<std::uint32_t>(1 + random.below(60));
      const auto run = space.take(wanted);
      if (!run) continue;
      CHECK((run->count >= 1 && run->count <= wanted));
      for (std::uint32_t i = 0; i < run->count; ++i) {
        if (used[run->first + i]) FAIL("block " << run->first + i << " twice");
        used[run->first + i] = true;
      }
      held.push_back(*run);
    } else if (!held.empty()) {
      std::swap(held[random.below(held.size())], held.back());
      for (std::uint32_t i = 0; i < held.back().count; ++i) used[held.back().first + i] = false;
      space.give(held.back());
      held.pop_back();
    }
  }
  std::uint32_t sum = 0;
  for (const BlockRun& run : held) sum += run.count;
  CHECK(space.free_blocks() == 1000 - sum);
}

TEST_CASE("flash space: a run that fits is found at any place") {
  Space space(512);
  while (space.free_blocks() > 0) REQUIRE(space.take(64).has_value());
  space.give({100, 3});
  space.give({300, 10});
  const auto run = space.take(10);
  REQUIRE(run.has_value());
  CHECK(run->first == 300);
  CHECK(run->count == 10);
  CHECK(space.take(10)->count == 3);
  CHECK_FALSE(space.take(1).has_value());
}
