#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <vector>

#include "daemon/tier/flash/log/examine.hpp"
#include "daemon/tier/flash/store/extent_store.hpp"
#include "tests/support/flash_ops.hpp"
#include "tests/unit/flash/store_rig.hpp"

namespace {

using namespace ho;
using namespace ho::flash;
using test::bytes_of;
using Rig = test::StoreRig;

}  // namespace

TEST_CASE("flash store: a block that was never written is not found, and is named") {
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
  std::uint64_t byte = 0;  // the extent's sixth block: places are assigned in order here
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
    const auto made = rig.store->create({64 * kKiB, Policy::kScratch});
    if (made) continue;
    CHECK(made.error().code() == Errc::kExhausted);
    CHECK(made.error().context().find("sim0: full: 64.0 KiB wanted") == 0);
    break;
  }
  const auto most = rig.store->create({UINT64_MAX, Policy::kScratch});
  REQUIRE_FALSE(most);
  CHECK(most.error().context().find("sim0: full: 16777216 TiB wanted") == 0);
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
  const auto refused = rig.store->create({4096, Policy::kScratch});
  CHECK(refused.error().code() == Errc::kExhausted);
  CHECK(refused.error().context() == "there are 3 flash extents, the limit");
  REQUIRE(rig.write(first, 0, bytes_of(64 * kKiB, 5)).done.code == Errc::kOk);
  auto into = bytes_of(64 * kKiB, 0);
  CHECK(rig.read(first, 0, into).done.code == Errc::kOk);
  CHECK(into == bytes_of(64 * kKiB, 5));
  // A limit below the number of extents drops none of them.
  REQUIRE(rig.store->close().ok());
  rig.extents_max = 1;
  REQUIRE(rig.open().ok());
  CHECK(rig.store->extents().size() == 2);
  CHECK(rig.read(first, 0, into).done.code == Errc::kOk);
  CHECK(rig.store->create({4096, Policy::kScratch}).error().code() == Errc::kExhausted);
  for (const ExtentId extent : {first, last}) {
    REQUIRE(rig.store->submit(FreeOp{OpId(5), extent}).ok());
    REQUIRE(rig.wait().done.code == Errc::kOk);
  }
  CHECK(rig.store->create({4096, Policy::kScratch}).ok());
}

TEST_CASE("flash store: a write beyond the day's budget is refused until the next day") {
  Rig rig;
  // Opening writes a new log, which counts against the budget too.
  REQUIRE(rig.open(200 * kKiB).ok());
  const ExtentId extent = rig.create(64 * kKiB, Policy::kScratch);
  const auto data = bytes_of(64 * kKiB, 1);
  Errc last = Errc::kOk;
  int writes = 0;
  while (last == Errc::kOk && writes < 10) {
    const auto accepted = rig.store->submit(test::write_op(OpId(1), extent, 0, data));
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
  rig.store->set_time(test::day_of(11));
  CHECK(rig.write(extent, 0, data).done.code == Errc::kOk);
}

TEST_CASE("flash store: writes that have not ended count against the budget") {
  Rig rig;
  REQUIRE(rig.open(200 * kKiB).ok());
  const ExtentId extent = rig.create(256 * kKiB, Policy::kScratch);
  const auto data = bytes_of(64 * kKiB, 1);
  int accepted = 0;
  for (std::uint64_t i = 0; i < 4; ++i) {
    accepted +=
        rig.store->submit(test::write_op(OpId(i), extent, i * 64 * kKiB, data)).ok() ? 1 : 0;
  }
  CHECK(accepted < 4);
  CHECK(accepted > 0);
  for (int i = 0; i < accepted; ++i) CHECK(rig.wait().done.code == Errc::kOk);
  CHECK(rig.store->paths()[0].wear.day_bytes <= 200 * kKiB);
  rig.store->set_time(test::day_of(11));
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
    REQUIRE(rig.store->submit(test::write_op(OpId(i), extent, i * 64 * kKiB, data)).ok());
    // Some writes are on the device, some are not, some have ended.
    CHECK(rig.store->poll({}) == 0);
  }
  const auto four = std::span(data).first(4 * kBlockBytes);
  CHECK(rig.store->submit(test::write_op(OpId(4), extent, 0, four)).error().code() ==
        Errc::kExhausted);
  // Ten bytes across the border of a block are two blocks.
  REQUIRE(rig.store->submit(test::write_op(OpId(5), extent, 300 * kKiB - 5, four.first(10))).ok());
  const auto one = std::span(data).first(1);
  CHECK(rig.store->submit(test::write_op(OpId(6), extent, 0, one)).error().code() == Errc::kBusy);
  for (int i = 0; i < 5; ++i) CHECK(rig.wait().done.code == Errc::kOk);
  CHECK(rig.store->submit(test::write_op(OpId(6), extent, 0, one)).error().code() ==
        Errc::kExhausted);
  CHECK(rig.store->paths()[0].wear.day_bytes == budget);
}

TEST_CASE("flash store: durable writes and creates never pass the budget, logs included") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    INFO("seed " << seed);
    Prng random(seed);
    Rig rig;
    rig.salt = seed;
    // Logs of 64 KiB: some fill up on the way.
    const std::uint64_t budget = 300 * kKiB + random.below(2 * kMiB);
    REQUIRE(rig.open(budget).ok());
    const auto written = [&] { return rig.store->paths()[0].wear.day_bytes; };
    const ExtentId extent = rig.create(512 * kKiB);
    const auto data = bytes_of(64 * kKiB, 3);
    StoreCompletion done;
    std::uint64_t open = 0;
    int refused = 0;
    // Refused although nothing in flight may return budget. Small writes in the end, since those
    // find the rest of it.
    while (refused < 40 || open > 0) {
      const std::uint64_t dice = random.below(8);
      if (refused >= 40 || dice < 4) {
        const std::size_t ended = rig.store->poll(std::span(&done, 1));
        if (ended > 0) REQUIRE(done.done.code == Errc::kOk);
        open -= ended;
      } else if (dice == 4 && random.below(16) == 0) {
        const auto made = rig.store->create({kBlockBytes, Policy::kDurable});
        const Errc code = made ? Errc::kOk : made.error().code();
        REQUIRE((code == Errc::kOk || code == Errc::kBusy || code == Errc::kExhausted));
      } else {
        const std::uint64_t blocks = refused > 20 ? 1 : 1 + random.below(16);
        const std::uint64_t at = random.below(128 - blocks) * kBlockBytes;
        const auto bytes = std::span(data).first(blocks * kBlockBytes);
        const auto taken = rig.store->submit(test::write_op(OpId(1), extent, at, bytes));
        if (taken) ++open;
        if (!taken && taken.error().code() == Errc::kExhausted && open == 0) ++refused;
      }
      REQUIRE(written() <= budget);
    }
    CHECK(budget - written() < 96 * kKiB);  // a block, its frames, and a new log
  }
}

TEST_CASE("flash store: budget that a write reserved and did not need is returned") {
  std::uint64_t opening = 0;
  {
    Rig rig;
    REQUIRE(rig.open().ok());
    static_cast<void>(rig.create(512 * kKiB));
    for (int i = 0; i < 100; ++i) CHECK(rig.store->poll({}) == 0);
    opening = rig.store->paths()[0].wear.day_bytes;
  }
  Rig rig;
  REQUIRE(rig.open(opening + 512 * kKiB).ok());
  const ExtentId extent = rig.create(512 * kKiB);
  const auto data = bytes_of(64 * kKiB, 1);
  const auto submit = [&](std::uint64_t nth) {
    return rig.store->submit(test::write_op(OpId(nth), extent, nth * 64 * kKiB, data));
  };
  // Each block might have both copies of its own frame: 192 KiB per write.
  REQUIRE(submit(0).ok());
  REQUIRE(submit(1).ok());
  CHECK(submit(2).error().code() == Errc::kBusy);
  CHECK(rig.wait().done.code == Errc::kOk);
  CHECK(rig.wait().done.code == Errc::kOk);
  CHECK(submit(2).ok());
  CHECK(rig.wait().done.code == Errc::kOk);
  // A failed write keeps only the budget of what it wrote.
  test::SimFlashFaults faults;
  faults.no_space = 1;
  rig.sim->set_faults(faults);
  REQUIRE(submit(3).ok());
  CHECK(rig.wait().done.code == Errc::kExhausted);
  rig.sim->set_faults({});
  const ExtentId scratch = rig.create(512 * kKiB, Policy::kScratch);
  const PathStatus path = rig.store->paths()[0];
  const std::uint64_t left = path.write_bytes_per_day_max - path.wear.day_bytes;
  const auto rest = bytes_of(left / kBlockBytes * kBlockBytes, 2);
  CHECK(rig.write(scratch, 0, rest).done.code == Errc::kOk);
}

TEST_CASE("flash store: each path's budget is charged what goes to that path") {
  Rig rig(4 * kMiB);
  rig.disks.push_back(std::make_shared<test::SimDisk>(4 * kMiB));
  REQUIRE(rig.open().ok());
  const ExtentId extent = rig.create(2 * kMiB, Policy::kScratch);
  const auto wear = [&](std::size_t path) { return rig.store->paths()[path].wear.day_bytes; };
  const std::uint64_t before = wear(0);
  const std::uint64_t other = wear(1);
  // The first stripe is on either path; the budget is that of the first path.
  const std::uint64_t here = Striping(extent, 2).place(0).path == PathIndex(0) ? 0 : kMiB;
  REQUIRE(rig.write(extent, here, bytes_of(kMiB, 1)).done.code == Errc::kOk);
  CHECK(wear(0) == before + kMiB);
  CHECK(wear(1) == other);
  REQUIRE(rig.open(before + kMiB / 2).ok());
  const ExtentId again = rig.create(2 * kMiB, Policy::kScratch);
  const std::uint64_t first = Striping(again, 2).place(0).path == PathIndex(0) ? 0 : kMiB;
  const auto data = bytes_of(kMiB, 2);
  CHECK(rig.store->submit(test::write_op(OpId(1), again, first, data)).error().code() ==
        Errc::kExhausted);
  CHECK(rig.write(again, kMiB - first, data).done.code == Errc::kOk);
}

TEST_CASE("flash store: a durable extent is made when its record is durable, not before") {
  Rig rig;
  REQUIRE(rig.open().ok());
  const ExtentId extent = rig.create(64 * kKiB);
  CHECK(rig.store->making(extent) == ExtentStore::Making::kUnderWay);
  for (int i = 0; i < 1000 && rig.store->making(extent) == ExtentStore::Making::kUnderWay; ++i) {
    CHECK(rig.store->poll({}) == 0);
  }
  CHECK(rig.store->making(extent) == ExtentStore::Making::kMade);
  CHECK(rig.store->making(rig.create(4096, Policy::kScratch)) == ExtentStore::Making::kMade);
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

TEST_CASE("flash store: more operations than its limit are busy, and each accepted one ends") {
  Rig rig;
  REQUIRE(rig.open().ok());
  const ExtentId extent = rig.create(64 * kKiB);
  const auto data = bytes_of(4096, 1);
  std::uint64_t accepted = 0;
  Errc last = Errc::kOk;
  while (last == Errc::kOk && accepted < 100) {
    const auto taken = rig.store->submit(test::write_op(OpId(accepted), extent, 0, data));
    if (taken) ++accepted;
    if (!taken) last = taken.error().code();
  }
  CHECK(last == Errc::kBusy);
  CHECK(accepted == 8);
  for (std::uint64_t i = 0; i < accepted; ++i) CHECK(rig.wait().done.op == OpId(i));
}

TEST_CASE("flash store: the end of a session ends its scratch extents and keeps the durable ones") {
  Rig rig;
  REQUIRE(rig.open().ok());
  const ExtentId scratch = rig.create(64 * kKiB, Policy::kScratch);
  const ExtentId durable = rig.create(64 * kKiB);
  REQUIRE(rig.write(durable, 0, bytes_of(4096, 1)).done.code == Errc::kOk);
  const std::uint64_t free_before = rig.store->paths()[0].free_bytes;
  rig.store->end_session(1);
  CHECK_FALSE(rig.store->find(scratch).has_value());
  CHECK(rig.store->find(durable).has_value());
  CHECK(rig.store->paths()[0].free_bytes == free_before + 64 * kKiB);
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
  rig.disks[0]->flip(100, 0);  // also one superblock
  seen = examine(device, PathIndex(0));
  REQUIRE(seen.ok());
  CHECK(seen->bad_blocks == 1);
  REQUIRE(seen->bad.size() == 1);
  CHECK(seen->bad[0].extent == extent);
  CHECK(seen->bad[0].block == 3);
  CHECK(seen->bad[0].path_offset == at + 3 * kBlockBytes);
  CHECK(seen->findings.size() == 1);
}

TEST_CASE("flash store: a durable overwrite of a nearly full path waits for free places") {
  Rig rig;
  REQUIRE(rig.open().ok());
  const std::uint64_t spare = 4 * kBlockBytes;
  const std::uint64_t bytes = rig.store->paths()[0].free_bytes - spare;
  const ExtentId extent = rig.create(bytes);
  const auto first = bytes_of(64 * kKiB, 5);
  const auto second = bytes_of(64 * kKiB, 6);
  REQUIRE(rig.write(extent, 0, first).done.code == Errc::kOk);
  // Sixteen blocks with four free places, and three such writes at a time.
  for (std::uint64_t i = 0; i < 3; ++i) {
    REQUIRE(rig.store->submit(test::write_op(OpId(i), extent, 0, second)).ok());
  }
  for (int i = 0; i < 3; ++i) CHECK(rig.wait().done.code == Errc::kOk);
  auto into = bytes_of(64 * kKiB, 0);
  REQUIRE(rig.read(extent, 0, into).done.code == Errc::kOk);
  CHECK(into == second);
  rig.store->check_space();
}

TEST_CASE("flash store: a durable overwrite of a full path says that it is full") {
  Rig rig;
  REQUIRE(rig.open().ok());
  const std::uint64_t bytes = rig.store->paths()[0].free_bytes;
  const ExtentId extent = rig.create(bytes);
  const auto block = bytes_of(kBlockBytes, 5);
  REQUIRE(rig.write(extent, 0, block).done.code == Errc::kOk);
  const auto full = rig.write(extent, 0, block);
  CHECK(full.done.code == Errc::kExhausted);
  CHECK(rig.store->describe(full.fault) ==
        "no free block for a durable overwrite on sim0: 0 B of " + format_bytes(bytes) +
            " free (extent 1, block 0)");
  // One place is enough, and the end of an extent frees one.
  REQUIRE(rig.store->submit(FreeOp{OpId(3), extent}).ok());
  REQUIRE(rig.wait().done.code == Errc::kOk);
  const ExtentId smaller = rig.create(bytes - 2 * kBlockBytes);
  const ExtentId going = rig.create(2 * kBlockBytes);
  REQUIRE(rig.write(smaller, 0, block).done.code == Errc::kOk);
  REQUIRE(rig.store->submit(FreeOp{OpId(4), going}).ok());
  REQUIRE(rig.store->submit(test::write_op(OpId(5), smaller, 0, block)).ok());
  CHECK(rig.wait().done.code == Errc::kOk);
  CHECK(rig.wait().done.code == Errc::kOk);
}

TEST_CASE("flash store: a crash loses the wear of a few seconds, not of a gigabyte") {
  Rig rig;
  REQUIRE(rig.open().ok());
  const ExtentId scratch = rig.create(kMiB, Policy::kScratch);
  const auto bytes = bytes_of(kMiB, 5);
  TimePoint now{};
  std::uint64_t before = 0;
  for (int second = 0; second < 20; ++second) {
    if (second == 14) before = rig.store->paths()[0].wear.total_bytes;
    REQUIRE(rig.write(scratch, 0, bytes).done.code == Errc::kOk);
    now += std::chrono::seconds(1);
    rig.store->tend_logs(now);
    for (int i = 0; i < 50; ++i) REQUIRE(rig.store->poll({}) == 0);
  }
  REQUIRE(before > 14 * kMiB);
  CHECK(rig.store->paths()[0].wear.total_bytes < 20 * kMiB + 16 * 4 * kKiB);  // few frames
  rig.sim->cut();
  REQUIRE(rig.open().ok());
  CHECK(rig.store->paths()[0].wear.total_bytes >= before);
}

TEST_CASE("flash examine: each unreadable block is named, and no other") {
  Rig rig;
  REQUIRE(rig.open().ok());
  const ExtentId extent = rig.create(64 * kKiB);
  REQUIRE(rig.write(extent, 0, bytes_of(64 * kKiB, 7)).done.code == Errc::kOk);
  REQUIRE(rig.store->close().ok());
  rig.store.reset();
  std::uint64_t at = plan_geometry(rig.disks[0]->size())->data_offset(0);
  while (rig.disks[0]->current()[at] != std::byte{7}) at += kBlockBytes;
  for (const std::uint64_t block : {2U, 9U}) rig.disks[0]->spoil(at + block * kBlockBytes);
  test::SimFlash device(rig.disks, 1, {});
  const auto seen = examine(device, PathIndex(0));
  REQUIRE(seen.ok());
  CHECK(seen->bad_blocks == 2);
  REQUIRE(seen->bad.size() == 2);
  CHECK(seen->bad[0].block == 2);
  CHECK(seen->bad[1].block == 9);
  CHECK(seen->bad[1].code == Errc::kIo);
}
