#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <vector>

#include "daemon/tier/flash/examine.hpp"
#include "daemon/tier/flash/store.hpp"
#include "tests/support/sim_flash.hpp"

namespace {

using namespace ho;
using namespace ho::flash;

struct Rig {
  explicit Rig(std::uint64_t bytes = 2 * kMiB) {
    disks.push_back(std::make_shared<test::SimDisk>(bytes));
  }
  Result<void> open(std::uint64_t budget = 0, std::uint32_t day = 10) {
    store.reset();
    Store::Options options;
    options.ops_max = 8;
    options.bounce_buffers = 2;
    options.day = day;
    options.salt = ++salt;
    options.write_bytes_per_day_max = {budget};
    options.extents_max = extents_max;
    findings.clear();
    auto device = std::make_unique<test::SimFlash>(disks, salt, test::SimFlashFaults{});
    sim = device.get();
    auto opened = Store::open(std::move(device), options, findings);
    if (!opened) return opened.error();
    store = std::move(*opened);
    return {};
  }
  ExtentId create(std::uint64_t bytes, Policy policy = Policy::kDurable) {
    const auto made = store->create({{1, 1, 1}, bytes, policy});
    REQUIRE(made.ok());
    return *made;
  }
  StoreCompletion wait() {
    StoreCompletion done;
    for (int i = 0; i < 100000; ++i) {
      if (store->poll(std::span(&done, 1)) == 1) return done;
    }
    FAIL("no completion");
    return done;
  }
  StoreCompletion write(ExtentId extent, std::uint64_t offset, std::span<const std::byte> bytes) {
    REQUIRE(store->submit(WriteOp{OpId(1), extent, offset, bytes}).ok());
    return wait();
  }
  StoreCompletion read(ExtentId extent, std::uint64_t offset, std::span<std::byte> into) {
    REQUIRE(store->submit(ReadOp{OpId(2), extent, offset, into}).ok());
    return wait();
  }

  std::vector<std::shared_ptr<test::SimDisk>> disks;
  test::SimFlash* sim = nullptr;
  std::unique_ptr<Store> store;
  Findings findings;  ///< of the last open()
  std::uint64_t salt = 0;
  std::size_t extents_max = 1000;
};

std::vector<std::byte> bytes_of(std::size_t count, unsigned value) {
  return std::vector<std::byte>(count, static_cast<std::byte>(value));
}

}  // namespace

TEST_CASE("flash store: what was never written is not found, and the block is named") {
  Rig rig;
  REQUIRE(rig.open().ok());
  const ExtentId extent = rig.create(64 * kKiB);
  REQUIRE(rig.write(extent, 0, bytes_of(4096, 7)).done.code == Errc::kOk);
  auto into = bytes_of(8192, 0);
  const auto done = rig.read(extent, 0, into);
  CHECK(done.done.code == Errc::kNotFound);
  CHECK(done.fault.extent == extent);
  CHECK(done.fault.block == 1);
}

TEST_CASE("flash store: a flipped bit is corrupt with path, extent, block and byte") {
  Rig rig;
  REQUIRE(rig.open().ok());
  const ExtentId extent = rig.create(64 * kKiB);
  REQUIRE(rig.write(extent, 0, bytes_of(64 * kKiB, 7)).done.code == Errc::kOk);
  REQUIRE(rig.store->close().ok());
  rig.store.reset();
  const auto plan = plan_geometry(rig.disks[0]->size());
  std::uint64_t byte = 0;  // the extent's sixth block: places are given out in order here
  const auto all = rig.disks[0]->current();
  for (std::uint32_t block = 0; block < plan->data_blocks; ++block) {
    if (all[plan->data_offset(block)] == std::byte{7}) {
      byte = plan->data_offset(block) + 5 * kBlockBytes + 100;
      break;
    }
  }
  REQUIRE(byte != 0);
  rig.disks[0]->cut(*std::make_unique<Prng>(1));
  rig.disks[0]->flip(byte, 3);
  REQUIRE(rig.open().ok());
  auto into = bytes_of(64 * kKiB, 0);
  const auto done = rig.read(extent, 0, into);
  CHECK(done.done.code == Errc::kCorrupt);
  CHECK(rig.store->describe(done.fault) == "path sim0: extent " + std::to_string(extent.value()) +
                                               ", block 5 (byte " + std::to_string(byte - 100) +
                                               " of the path)");
  CHECK(rig.read(extent, 0, std::span(into).first(5 * kBlockBytes)).done.code == Errc::kOk);
}

TEST_CASE("flash store: a full tier refuses and stays readable") {
  Rig rig;
  REQUIRE(rig.open().ok());
  const ExtentId first = rig.create(64 * kKiB);
  REQUIRE(rig.write(first, 0, bytes_of(64 * kKiB, 5)).done.code == Errc::kOk);
  for (;;) {
    const auto made = rig.store->create({{1, 1, 2}, 64 * kKiB, Policy::kScratch});
    if (made) continue;
    CHECK(made.error().code() == Errc::kExhausted);
    CHECK(made.error().context().find("sim0: full: 64.0 KiB wanted") == 0);
    break;
  }
  auto into = bytes_of(64 * kKiB, 0);
  CHECK(rig.read(first, 0, into).done.code == Errc::kOk);
  CHECK(into == bytes_of(64 * kKiB, 5));
}

TEST_CASE("flash store: at its limit of extents it refuses more, and the others go on") {
  Rig rig;
  rig.extents_max = 3;
  REQUIRE(rig.open().ok());
  const ExtentId first = rig.create(64 * kKiB);
  static_cast<void>(rig.create(4096, Policy::kScratch));
  const ExtentId last = rig.create(4096);
  const auto refused = rig.store->create({{1, 1, 1}, 4096, Policy::kScratch});
  CHECK(refused.error().code() == Errc::kExhausted);
  CHECK(refused.error().context() == "there are 3 flash extents; more would take too much memory");
  REQUIRE(rig.write(first, 0, bytes_of(64 * kKiB, 5)).done.code == Errc::kOk);
  auto into = bytes_of(64 * kKiB, 0);
  CHECK(rig.read(first, 0, into).done.code == Errc::kOk);
  CHECK(into == bytes_of(64 * kKiB, 5));
  // A lower limit than there are extents forgets none of them.
  REQUIRE(rig.store->close().ok());
  rig.extents_max = 1;
  REQUIRE(rig.open().ok());
  CHECK(rig.store->extents().size() == 2);
  CHECK(rig.read(first, 0, into).done.code == Errc::kOk);
  CHECK(rig.store->create({{1, 1, 1}, 4096, Policy::kScratch}).error().code() == Errc::kExhausted);
  for (const ExtentId extent : {first, last}) {
    REQUIRE(rig.store->submit(FreeOp{OpId(5), extent}).ok());
    REQUIRE(rig.wait().done.code == Errc::kOk);
  }
  CHECK(rig.store->create({{1, 1, 1}, 4096, Policy::kScratch}).ok());
}

TEST_CASE("flash store: a write beyond the day's budget is refused until the next day") {
  Rig rig;
  // Opening writes a log of its own; the budget counts that too.
  REQUIRE(rig.open(200 * kKiB).ok());
  const ExtentId extent = rig.create(64 * kKiB, Policy::kScratch);
  const auto data = bytes_of(64 * kKiB, 1);
  Errc last = Errc::kOk;
  int writes = 0;
  while (last == Errc::kOk && writes < 10) {
    const auto accepted = rig.store->submit(WriteOp{OpId(1), extent, 0, data});
    if (!accepted) {
      last = accepted.error().code();
      CHECK(accepted.error().context().find("sim0: today's write budget of 200 KiB") == 0);
      break;
    }
    CHECK(rig.wait().done.code == Errc::kOk);
    ++writes;
  }
  CHECK(last == Errc::kExhausted);
  CHECK((writes == 2 || writes == 3));
  auto into = bytes_of(64 * kKiB, 0);
  CHECK(rig.read(extent, 0, into).done.code == Errc::kOk);
  rig.store->set_day(11);
  CHECK(rig.write(extent, 0, data).done.code == Errc::kOk);
}

TEST_CASE("flash store: writes that have not ended count against the budget") {
  Rig rig;
  REQUIRE(rig.open(200 * kKiB).ok());
  const ExtentId extent = rig.create(256 * kKiB, Policy::kScratch);
  const auto data = bytes_of(64 * kKiB, 1);
  int accepted = 0;
  for (std::uint64_t i = 0; i < 4; ++i) {
    accepted += rig.store->submit(WriteOp{OpId(i), extent, i * 64 * kKiB, data}).ok() ? 1 : 0;
  }
  CHECK(accepted < 4);
  CHECK(accepted > 0);
  for (int i = 0; i < accepted; ++i) CHECK(rig.wait().done.code == Errc::kOk);
  CHECK(rig.store->paths()[0].wear.day_bytes <= 200 * kKiB);
  rig.store->set_day(11);
  CHECK(rig.write(extent, 0, data).done.code == Errc::kOk);
}

TEST_CASE("flash store: the budget is used to its last block, whatever is in flight") {
  std::uint64_t opening = 0;
  {
    Rig rig;
    REQUIRE(rig.open().ok());
    opening = rig.store->paths()[0].wear.day_bytes;
  }
  Rig rig;
  const std::uint64_t budget = opening + 256 * kKiB + 2 * kBlockBytes;
  REQUIRE(rig.open(budget).ok());
  const ExtentId extent = rig.create(512 * kKiB, Policy::kScratch);
  const auto data = bytes_of(64 * kKiB, 1);
  for (std::uint64_t i = 0; i < 4; ++i) {
    REQUIRE(rig.store->submit(WriteOp{OpId(i), extent, i * 64 * kKiB, data}).ok());
    // Some of it is on the device, some is not, some has ended.
    CHECK(rig.store->poll({}) == 0);
  }
  const auto four = std::span(data).first(4 * kBlockBytes);
  CHECK(rig.store->submit(WriteOp{OpId(4), extent, 0, four}).error().code() == Errc::kExhausted);
  // Ten bytes over the edge of a block are two blocks.
  REQUIRE(rig.store->submit(WriteOp{OpId(5), extent, 300 * kKiB - 5, four.first(10)}).ok());
  const auto one = std::span(data).first(1);
  CHECK(rig.store->submit(WriteOp{OpId(6), extent, 0, one}).error().code() == Errc::kExhausted);
  for (int i = 0; i < 5; ++i) CHECK(rig.wait().done.code == Errc::kOk);
  CHECK(rig.store->paths()[0].wear.day_bytes == budget);
}

TEST_CASE("flash store: each path's budget is charged what goes to that path") {
  Rig rig(4 * kMiB);
  rig.disks.push_back(std::make_shared<test::SimDisk>(4 * kMiB));
  REQUIRE(rig.open().ok());
  const ExtentId extent = rig.create(2 * kMiB, Policy::kScratch);
  const auto wear = [&](std::size_t path) { return rig.store->paths()[path].wear.day_bytes; };
  const std::uint64_t before = wear(0);
  const std::uint64_t other = wear(1);
  // The first stripe is the first path's or the second's; the budget is the first path's.
  const std::uint64_t here = Striping(extent, 2).place(0).path == PathIndex(0) ? 0 : kMiB;
  REQUIRE(rig.write(extent, here, bytes_of(kMiB, 1)).done.code == Errc::kOk);
  CHECK(wear(0) == before + kMiB);
  CHECK(wear(1) == other);
  REQUIRE(rig.open(before + kMiB / 2).ok());
  const ExtentId again = rig.create(2 * kMiB, Policy::kScratch);
  const std::uint64_t first = Striping(again, 2).place(0).path == PathIndex(0) ? 0 : kMiB;
  const auto data = bytes_of(kMiB, 2);
  CHECK(rig.store->submit(WriteOp{OpId(1), again, first, data}).error().code() == Errc::kExhausted);
  CHECK(rig.write(again, kMiB - first, data).done.code == Errc::kOk);
}

TEST_CASE("flash store: a durable extent is made when its record is safe, not before") {
  Rig rig;
  REQUIRE(rig.open().ok());
  const ExtentId extent = rig.create(64 * kKiB);
  CHECK(rig.store->making(extent) == Store::Making::kUnderWay);
  for (int i = 0; i < 1000 && rig.store->making(extent) == Store::Making::kUnderWay; ++i) {
    CHECK(rig.store->poll({}) == 0);
  }
  CHECK(rig.store->making(extent) == Store::Making::kMade);
  CHECK(rig.store->making(rig.create(4096, Policy::kScratch)) == Store::Making::kMade);
}

TEST_CASE("flash store: wear survives a close and begins anew with the day") {
  Rig rig;
  REQUIRE(rig.open().ok());
  const ExtentId extent = rig.create(64 * kKiB, Policy::kScratch);
  for (int i = 0; i < 5; ++i) {
    REQUIRE(rig.write(extent, 0, bytes_of(64 * kKiB, 1)).done.code == Errc::kOk);
  }
  REQUIRE(rig.store->close().ok());
  const Wear before = rig.store->paths()[0].wear;
  CHECK(before.day == 10);
  CHECK(before.day_bytes >= 5 * 64 * kKiB);
  REQUIRE(rig.open(0, 11).ok());
  const Wear after = rig.store->paths()[0].wear;
  CHECK(after.day == 11);
  CHECK(after.day_bytes < 64 * kKiB);
  CHECK(after.total_bytes >= before.total_bytes);
}

TEST_CASE("flash store: a foreign path and a wrong set are refused and left alone") {
  Rig rig;
  rig.disks[0]->flip(5, 1);
  auto opened = rig.open();
  CHECK(opened.error().code() == Errc::kCorrupt);
  CHECK(opened.error().context().find("sim0: not a flash path of HyperOffload") == 0);
  rig.disks[0]->flip(5, 1);
  REQUIRE(rig.open().ok());
  rig.store.reset();
  rig.disks.push_back(std::make_shared<test::SimDisk>(2 * kMiB));
  CHECK(rig.open().error().code() == Errc::kConflict);
}

TEST_CASE("flash store: more operations than its limit are busy, and each accepted one ends") {
  Rig rig;
  REQUIRE(rig.open().ok());
  const ExtentId extent = rig.create(64 * kKiB);
  const auto data = bytes_of(4096, 1);
  std::uint64_t accepted = 0;
  Errc last = Errc::kOk;
  while (last == Errc::kOk && accepted < 100) {
    const auto taken = rig.store->submit(WriteOp{OpId(accepted), extent, 0, data});
    if (taken) ++accepted;
    if (!taken) last = taken.error().code();
  }
  CHECK(last == Errc::kBusy);
  CHECK(accepted == 8);
  for (std::uint64_t i = 0; i < accepted; ++i) CHECK(rig.wait().done.op == OpId(i));
}

TEST_CASE("flash store: a session's end takes its scratch extents and leaves the durable ones") {
  Rig rig;
  REQUIRE(rig.open().ok());
  const ExtentId scratch = rig.create(64 * kKiB, Policy::kScratch);
  const ExtentId durable = rig.create(64 * kKiB);
  REQUIRE(rig.write(durable, 0, bytes_of(4096, 1)).done.code == Errc::kOk);
  const std::uint64_t free_before = rig.store->paths()[0].free_bytes;
  rig.store->end_session(1, 1);
  CHECK_FALSE(rig.store->find(scratch).has_value());
  CHECK(rig.store->find(durable).has_value());
  CHECK(rig.store->paths()[0].free_bytes == free_before + 64 * kKiB);
}

TEST_CASE("flash store: a write cut between its record and its data leaves each block old or new") {
  const auto old_bytes = bytes_of(32 * kKiB, 5);
  const auto new_bytes = bytes_of(32 * kKiB, 6);
  int missing = 0;
  int arrived = 0;
  for (int turns = 0; turns < 400; ++turns) {
    Rig rig;
    rig.salt = static_cast<std::uint64_t>(turns);
    REQUIRE(rig.open().ok());
    const ExtentId extent = rig.create(64 * kKiB);
    // The first half holds something, the second never did.
    REQUIRE(rig.write(extent, 0, old_bytes).done.code == Errc::kOk);
    REQUIRE(rig.store->submit(WriteOp{OpId(1), extent, 0, new_bytes}).ok());
    REQUIRE(rig.store->submit(WriteOp{OpId(2), extent, 32 * kKiB, new_bytes}).ok());
    bool acknowledged = false;
    for (int i = 0; i < turns % 20; ++i) {
      StoreCompletion done;
      acknowledged = rig.store->poll(std::span(&done, 1)) > 0 || acknowledged;
    }
    rig.sim->cut();
    REQUIRE(rig.open().ok());
    if (acknowledged) continue;
    missing += rig.findings.empty() ? 0 : 1;
    for (std::uint64_t block = 0; block < 16; ++block) {
      auto into = bytes_of(kBlockBytes, 0);
      const auto done = rig.read(extent, block * kBlockBytes, into);
      const bool is_new = done.done.code == Errc::kOk && into == bytes_of(kBlockBytes, 6);
      const bool is_old = block < 8
                              ? done.done.code == Errc::kOk && into == bytes_of(kBlockBytes, 5)
                              : done.done.code == Errc::kNotFound;
      if (!is_new && !is_old) FAIL("block " << block << " after " << turns << " turns");
      arrived += is_new ? 1 : 0;
    }
    rig.store->check_space();
  }
  // Both kinds of tail were met: a phantom one and one that stands.
  CHECK(missing > 10);
  CHECK(arrived > 10);
}

TEST_CASE("flash store: a block of the last write that rots after a seal is corrupt, never old") {
  Rig rig;
  REQUIRE(rig.open().ok());
  const ExtentId extent = rig.create(64 * kKiB);
  REQUIRE(rig.write(extent, 0, bytes_of(64 * kKiB, 5)).done.code == Errc::kOk);
  REQUIRE(rig.write(extent, 0, bytes_of(64 * kKiB, 6)).done.code == Errc::kOk);
  CHECK_FALSE(rig.store->sealed());
  rig.store->seal();
  for (int i = 0; i < 100; ++i) CHECK(rig.store->poll({}) == 0);
  CHECK(rig.store->sealed());
  rig.sim->cut();
  rig.store.reset();
  std::uint64_t at = plan_geometry(rig.disks[0]->size())->data_offset(0);
  while (rig.disks[0]->current()[at] != std::byte{6}) at += kBlockBytes;
  rig.disks[0]->flip(at, 0);
  REQUIRE(rig.open().ok());
  auto into = bytes_of(64 * kKiB, 0);
  CHECK(rig.read(extent, 0, into).done.code == Errc::kCorrupt);
}

TEST_CASE(
    "flash store: a path of format version 1 is read as that one meant it, and goes on as ours") {
  Rig rig;
  REQUIRE(rig.open().ok());
  const ExtentId extent = rig.create(64 * kKiB);
  REQUIRE(rig.write(extent, 0, bytes_of(64 * kKiB, 5)).done.code == Errc::kOk);
  REQUIRE(rig.write(extent, 0, bytes_of(64 * kKiB, 6)).done.code == Errc::kOk);
  rig.sim->cut();
  rig.store.reset();
  test::SimDisk& disk = *rig.disks[0];
  const auto plan = plan_geometry(disk.size());
  const auto version_of = [&](std::size_t copy) {
    const auto block = disk.current().subspan(plan->super_offset(copy)).first<kBlockBytes>();
    const auto super = decode_superblock(block);
    REQUIRE(super.ok());
    return super->version;
  };
  for (std::size_t copy = 0; copy < kCopies; ++copy) {
    const auto block = disk.current().subspan(plan->super_offset(copy)).first<kBlockBytes>();
    auto super = *decode_superblock(block);
    super.version = 1;
    std::vector<std::byte> as_1(kBlockBytes);
    encode_superblock(super, std::span<std::byte, kBlockBytes>(as_1));
    for (std::size_t bit = 0; bit < 8 * kBlockBytes; ++bit) {
      const auto mask = static_cast<std::byte>(1U << (bit % 8));
      if (((as_1[bit / 8] ^ block[bit / 8]) & mask) == std::byte{0}) continue;
      disk.flip(plan->super_offset(copy) + bit / 8, static_cast<unsigned>(bit % 8));
    }
    CHECK(version_of(copy) == 1);
  }
  // Its last write was safe before it was logged: what does not match is damage.
  std::uint64_t at = plan->data_offset(0);
  while (disk.current()[at] != std::byte{6}) at += kBlockBytes;
  disk.flip(at, 0);
  REQUIRE(rig.open().ok());
  auto into = bytes_of(64 * kKiB, 0);
  CHECK(rig.read(extent, 0, into).done.code == Errc::kCorrupt);
  CHECK(rig.read(extent, kBlockBytes, std::span(into).first(kBlockBytes)).done.code == Errc::kOk);
  CHECK(version_of(0) == kFormatVersion);
  CHECK(version_of(1) == kFormatVersion);
}

TEST_CASE("flash store: a log describes any pattern of written blocks, and never stops for it") {
  // Every second block, and then again elsewhere: no two lie together, none has a written
  // neighbour.
  const std::uint64_t blocks = GENERATE(15000ULL, 3000ULL);
  Rig rig(blocks > 4096 ? 64 * kMiB : 16 * kMiB);
  REQUIRE(rig.open().ok());
  const ExtentId extent = rig.create(blocks * kBlockBytes);
  for (unsigned pass = 1; pass <= 2; ++pass) {
    const auto bytes = bytes_of(kBlockBytes, pass);
    for (std::uint64_t block = 0; block < blocks; block += 2) {
      const auto done = rig.write(extent, block * kBlockBytes, bytes);
      if (done.done.code != Errc::kOk) FAIL("block " << block << " in pass " << pass);
    }
  }
  rig.sim->cut();
  REQUIRE(rig.open().ok());
  auto into = bytes_of(kBlockBytes, 0);
  CHECK(rig.read(extent, (blocks - 2) * kBlockBytes, into).done.code == Errc::kOk);
  CHECK(into == bytes_of(kBlockBytes, 2));
  CHECK(rig.read(extent, (blocks - 1) * kBlockBytes, into).done.code == Errc::kNotFound);
}

TEST_CASE("flash examine: a clean path has no bad block, a flipped bit is listed with its place") {
  Rig rig;
  REQUIRE(rig.open().ok());
  const ExtentId extent = rig.create(64 * kKiB);
  REQUIRE(rig.write(extent, 0, bytes_of(32 * kKiB, 7)).done.code == Errc::kOk);
  REQUIRE(rig.store->close().ok());
  rig.store.reset();
  test::SimFlash device(rig.disks, 1, {});
  auto seen = examine(device, PathIndex(0));
  REQUIRE(seen.ok());
  CHECK(seen->bad_blocks == 0);
  CHECK(seen->findings.empty());
  CHECK(seen->extents == 1);
  CHECK(seen->blocks == 16);
  CHECK(seen->blocks_written == 8);
  Prng random(1);
  rig.disks[0]->cut(random);
  const std::uint64_t first = seen->geometry.data_offset(0);
  std::uint64_t at = first;
  while (rig.disks[0]->current()[at] != std::byte{7}) at += kBlockBytes;
  rig.disks[0]->flip(at + 3 * kBlockBytes + 9, 0);
  rig.disks[0]->flip(100, 0);  // and one superblock
  seen = examine(device, PathIndex(0));
  REQUIRE(seen.ok());
  CHECK(seen->bad_blocks == 1);
  REQUIRE(seen->bad.size() == 1);
  CHECK(seen->bad[0].extent == extent);
  CHECK(seen->bad[0].block == 3);
  CHECK(seen->bad[0].path_offset == at + 3 * kBlockBytes);
  CHECK(seen->findings.size() == 1);
}
