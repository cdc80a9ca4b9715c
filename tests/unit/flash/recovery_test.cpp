#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/tier/flash/store/extent_store.hpp"
#include "tests/support/flash_ops.hpp"
#include "tests/unit/flash/store_rig.hpp"

namespace {

using namespace ho;
using namespace ho::flash;
using test::bytes_of;
using Rig = test::StoreRig;

}  // namespace

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

TEST_CASE("flash store: a power cut between a record and its data leaves each block old or new") {
  const auto old_bytes = bytes_of(32 * kKiB, 5);
  const auto new_bytes = bytes_of(32 * kKiB, 6);
  int missing = 0;
  int arrived = 0;
  for (int turns = 0; turns < 400; ++turns) {
    Rig rig;
    rig.salt = static_cast<std::uint64_t>(turns);
    REQUIRE(rig.open().ok());
    const ExtentId extent = rig.create(64 * kKiB);
    // The first half has contents, the second was never written.
    REQUIRE(rig.write(extent, 0, old_bytes).done.code == Errc::kOk);
    REQUIRE(rig.store->submit(test::write_op(OpId(1), extent, 0, new_bytes)).ok());
    REQUIRE(rig.store->submit(test::write_op(OpId(2), extent, 32 * kKiB, new_bytes)).ok());
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
  // Both kinds of tail occurred: one without its data and one with it.
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

TEST_CASE("flash store: a log that took no write for a while is sealed, whatever else goes on") {
  Rig rig(8 * kMiB);
  REQUIRE(rig.open().ok());
  const ExtentId extent = rig.create(64 * kKiB);
  const ExtentId scratch = rig.create(64 * kKiB, Policy::kScratch);
  auto bytes = bytes_of(4096, 6);
  TimePoint now{};
  const auto turn = [&](std::chrono::milliseconds time) {
    now += time;
    rig.store->tend_logs(now);
    REQUIRE(rig.write(scratch, 0, bytes).done.code == Errc::kOk);
    REQUIRE(rig.read(scratch, 0, bytes).done.code == Errc::kOk);
    for (int i = 0; i < 20; ++i) REQUIRE(rig.store->poll({}) == 0);
  };
  REQUIRE(rig.write(extent, 0, bytes).done.code == Errc::kOk);
  turn(std::chrono::milliseconds(10));
  turn(std::chrono::milliseconds(90));
  CHECK_FALSE(rig.store->sealed());
  turn(std::chrono::milliseconds(10));
  CHECK(rig.store->sealed());
  // Under durable writes it costs nothing: each frame records this for those before it.
  for (int i = 0; i < 20; ++i) {
    REQUIRE(rig.write(extent, 0, bytes).done.code == Errc::kOk);
    turn(std::chrono::milliseconds(60));
    CHECK_FALSE(rig.store->sealed());
  }
}

TEST_CASE("flash store: a log describes any pattern of written blocks without stopping") {
  // Every second block, then again elsewhere: no two are contiguous, none has a written neighbour.
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

TEST_CASE("flash store: an unreadable block of the log costs nothing, or the start is refused") {
  Rig rig;
  const ExtentId extent = rig.write_and_cut({5, 6, 7});
  const test::SimDisk before = *rig.disks[0];
  const auto plan = *plan_geometry(before.size());
  int refused = 0;
  for (std::uint64_t at = 0; at < plan.area_bytes; at += kBlockBytes) {
    for (std::size_t copies = 1; copies <= kCopies; ++copies) {
      *rig.disks[0] = before;
      for (std::size_t area = 0; area < 2; ++area) {
        for (std::size_t copy = 0; copy < copies; ++copy) {
          rig.disks[0]->spoil(plan.area_offset(area, copy) + at);
        }
      }
      const auto opened = rig.open();
      if (!opened) {
        ++refused;
        CHECK(copies == kCopies);
        CHECK(opened.error().code() == Errc::kIo);
        const std::string where = "byte " + std::to_string(plan.area_offset(0, 0) + at);
        const std::string other = "byte " + std::to_string(plan.area_offset(1, 0) + at);
        const std::string said = opened.error().context();
        CHECK(said.find("sim0: ") == 0);
        CHECK((said.find(where) != std::string::npos || said.find(other) != std::string::npos));
        continue;
      }
      auto into = bytes_of(64 * kKiB, 0);
      CHECK(rig.read(extent, 0, into).done.code == Errc::kOk);
      CHECK(into == bytes_of(64 * kKiB, 7));
    }
  }
  CHECK(refused >= 5);  // a snapshot, a create, three writes
}

TEST_CASE(
    "flash store: only unreadable blocks of a write in doubt count as written without a check") {
  Rig rig;
  const ExtentId extent = rig.write_and_cut({5, 6});
  std::uint64_t at = plan_geometry(rig.disks[0]->size())->data_offset(0);
  while (rig.disks[0]->current()[at] != std::byte{6}) at += kBlockBytes;
  rig.disks[0]->spoil(at + 3 * kBlockBytes);
  rig.disks[0]->flip(at + 5 * kBlockBytes, 0);  // like a block that had not arrived
  REQUIRE(rig.open().ok());
  for (std::uint64_t block = 0; block < 16; ++block) {
    auto into = bytes_of(kBlockBytes, 0);
    const auto done = rig.read(extent, block * kBlockBytes, into);
    CHECK(done.done.code == (block == 3 ? Errc::kIo : Errc::kOk));
    if (block != 3) CHECK(into == bytes_of(kBlockBytes, block == 5 ? 5 : 6));
  }
}

TEST_CASE("flash store: a path with a foreign file system is refused and left alone") {
  constexpr std::uint64_t kSize = 4 * kMiB;
  struct Signature {
    const char* what;
    std::uint64_t at;
    std::string_view bytes;
  };
  using namespace std::string_view_literals;
  const Signature signatures[] = {
      {"btrfs", 64 * kKiB + 64, "_BHRfS_M"sv},
      {"md 1.2", 4 * kKiB, "\xfc\x4e\x2b\xa9"sv},
      {"md 0.9", kSize - 64 * kKiB, "\xfc\x4e\x2b\xa9"sv},
      {"bcache", 4 * kKiB + 24, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca"sv},
      {"ISO 9660", 32 * kKiB + 1, "CD001"sv},
      {"swap with pages of 64 KiB", 64 * kKiB - 10, "SWAPSPACE2"sv},
      {"ZFS", 128 * kKiB, "\x0c\xb1\xba\x00\x00\x00\x00\x00"sv},
      {"GPT at the end", kSize - 512, "EFI PART"sv},
  };
  for (const Signature& one : signatures) {
    INFO(one.what);
    Rig rig(kSize);
    rig.disks[0]->write(one.at, std::as_bytes(std::span(one.bytes)), 0);
    const auto all = rig.disks[0]->current();
    const std::vector<std::byte> before(all.begin(), all.end());
    const auto refused = rig.open();
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code() == Errc::kCorrupt);
    CHECK(refused.error().context().find("not blank") != std::string::npos);
    CHECK(std::equal(all.begin(), all.end(), before.begin()));
  }
}

TEST_CASE("flash store: a path that is blank at both ends is accepted") {
  Rig rig(4 * kMiB);
  rig.disks[0]->write(2 * kMiB, bytes_of(kBlockBytes, 1), 0);
  CHECK(rig.open().ok());
}

TEST_CASE("flash store: an interrupted first start over several paths begins again") {
  for (std::uint64_t cut_after = 0; cut_after < 60; ++cut_after) {
    for (const bool again : {false, true}) {
      Rig rig;
      rig.disks.push_back(std::make_shared<test::SimDisk>(2 * kMiB));
      rig.disks.push_back(std::make_shared<test::SimDisk>(3 * kMiB));
      INFO("cut after " << cut_after);
      for (int cut = 0; cut < (again ? 2 : 1); ++cut) {
        rig.faults.killed = cut_after % 2 == 1;
        rig.faults.dies_after = cut == 0 ? cut_after : cut_after / 2;
        rig.set = std::byte(10 + cut);
        static_cast<void>(rig.open());
        if (rig.store && !rig.sim->dead()) rig.sim->cut();
      }
      rig.faults = {};
      rig.set = std::byte{20};
      const auto opened = rig.open();
      INFO((opened ? "" : opened.error().message()));
      REQUIRE(opened.ok());
      const ExtentId extent = rig.create(kMiB);
      REQUIRE(rig.write(extent, 0, bytes_of(kMiB, 6)).done.code == Errc::kOk);
    }
  }
}

TEST_CASE("flash recovery: leftovers of another first start do not count as the same superblock") {
  Rig rig;
  test::SimFlash device(rig.disks, 1, {});
  BlockingIo io(device);
  REQUIRE(format(io, PathIndex(0), SetId{std::byte{1}}, 1).ok());
  test::SimDisk earlier = *rig.disks[0];
  REQUIRE(format(io, PathIndex(0), SetId{std::byte{2}}, 1).ok());
  // The later start was interrupted before its second copy.
  const std::uint64_t second = plan_geometry(earlier.size())->super_offset(1);
  const auto old = earlier.current().subspan(second, kBlockBytes);
  REQUIRE(io.write(PathIndex(0), second, old).ok());
  Findings findings;
  auto volume = recover(io, PathIndex(0), findings);
  REQUIRE(volume.ok());
  CHECK(volume->super.set == SetId{std::byte{2}});
  CHECK(volume->super_stands == std::array{true, false});
  REQUIRE(repair_superblocks(io, *volume).ok());
  rig.disks[0]->flip(100, 0);
  findings.clear();
  volume = recover(io, PathIndex(0), findings);
  REQUIRE(volume.ok());
  CHECK(volume->super.set == SetId{std::byte{2}});
}

TEST_CASE("flash store: an older superblock is repaired before the other one is overwritten") {
  const auto epochs = [](const Rig& rig) {
    const auto plan = plan_geometry(rig.disks[0]->size());
    std::array<std::uint64_t, kCopies> out{};
    for (std::size_t copy = 0; copy < kCopies; ++copy) {
      const auto at = rig.disks[0]->current().subspan(plan->super_offset(copy));
      const auto super = decode_superblock(at.first<kBlockBytes>());
      if (super) out[copy] = super->epoch;
    }
    return out;
  };
  // Also a kill, after which the data that recovery read may not be durable yet.
  const bool killed = GENERATE(false, true);
  int left_behind = 0;
  int torn = 0;
  for (std::uint64_t first = 0; first < 30; ++first) {
    Rig rig;
    rig.salt = 10 * first;
    REQUIRE(rig.open().ok());
    const ExtentId extent = rig.create(64 * kKiB);
    REQUIRE(rig.write(extent, 0, bytes_of(64 * kKiB, 5)).done.code == Errc::kOk);
    REQUIRE(rig.store->close().ok());
    rig.faults.dies_after = first;
    rig.faults.killed = killed;
    static_cast<void>(rig.open());
    rig.store.reset();
    const auto before = epochs(rig);
    if (before[0] == before[1]) continue;
    ++left_behind;
    const test::SimDisk half = *rig.disks[0];
    for (std::uint64_t second = 0; second < 40; ++second) {
      *rig.disks[0] = half;
      rig.faults.dies_after = second;
      rig.faults.killed = false;
      static_cast<void>(rig.open());
      rig.store.reset();
      // The cut came while the first copy was written, and destroyed all of it.
      if (epochs(rig)[0] == before[0]) continue;
      ++torn;
      rig.disks[0]->flip(100, 0);
      rig.faults = {};
      const auto opened = rig.open();
      INFO("cut after " << first << " and " << second << ": "
                        << (opened ? "" : opened.error().message()));
      REQUIRE(opened.ok());
      auto into = bytes_of(64 * kKiB, 0);
      REQUIRE(rig.read(extent, 0, into).done.code == Errc::kOk);
      REQUIRE(into == bytes_of(64 * kKiB, 5));
      CHECK(epochs(rig)[0] == epochs(rig)[1]);
    }
  }
  CHECK(left_behind >= 1);
  CHECK(torn >= 1);
}

TEST_CASE("flash store: a path of a set that was in use, beside a blank one, is refused") {
  Rig rig;
  rig.disks.push_back(std::make_shared<test::SimDisk>(2 * kMiB));
  REQUIRE(rig.open().ok());
  REQUIRE(rig.store->close().ok());
  rig.disks[1] = std::make_shared<test::SimDisk>(2 * kMiB);
  CHECK(rig.open().error().code() == Errc::kConflict);
}

TEST_CASE("flash store: paths that disagree about an extent are refused") {
  const auto with_extent_of = [](std::uint64_t bytes) {
    Rig rig(8 * kMiB);
    rig.disks.push_back(std::make_shared<test::SimDisk>(8 * kMiB));
    REQUIRE(rig.open().ok());
    static_cast<void>(rig.create(bytes));
    REQUIRE(rig.store->close().ok());
    return rig.disks;
  };
  Rig rig;
  rig.disks = with_extent_of(4 * kMiB);
  rig.disks[1] = with_extent_of(2 * kMiB)[1];
  const auto opened = rig.open();
  REQUIRE_FALSE(opened.ok());
  CHECK(opened.error().code() == Errc::kCorrupt);
  CHECK(opened.error().context() == "sim1: extent 1 differs between this path and another");
}

TEST_CASE("flash store: a path that has grown goes on as it was, and says so") {
  Rig rig;
  const ExtentId extent = rig.write_and_cut({5});
  const auto small = rig.disks[0]->current();
  auto grown = std::make_shared<test::SimDisk>(5 * kMiB);
  grown->write(0, small, 0);
  rig.disks[0] = grown;
  REQUIRE(rig.open().ok());
  auto into = bytes_of(64 * kKiB, 0);
  CHECK(rig.read(extent, 0, into).done.code == Errc::kOk);
  CHECK(rig.store->paths()[0].unused_bytes == 3 * kMiB);
  const std::string said =
      "sim0: has grown from 2.00 MiB to 5.00 MiB since it was formatted; what was added is not "
      "used";
  CHECK(std::count(rig.findings.begin(), rig.findings.end(), said) == 1);
}
