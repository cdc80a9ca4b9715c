#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <vector>

#include "daemon/tier/flash/device/aligned_memory.hpp"
#include "daemon/tier/flash/log/recover.hpp"
#include "tests/unit/flash/late_device.hpp"
#include "tests/unit/flash/sparse_device.hpp"
#include "tests/unit/flash/store_rig.hpp"

namespace {

using namespace ho;
using namespace ho::flash;
using test::bytes_of;
using Rig = test::StoreRig;

/// Recovers the rig's path. @return the device, which recorded its operations.
std::unique_ptr<test::LateDevice> recover_from(const Rig& rig) {
  auto device = std::make_unique<test::LateDevice>(rig.disks);
  BlockingIo io(*device);
  Findings findings;
  REQUIRE(recover(io, PathIndex(0), findings).ok());
  return device;
}

}  // namespace

TEST_CASE("flash recovery: an unreadable block of the log is searched once") {
  Rig rig(64 * kMiB);
  REQUIRE(rig.open().ok());
  const ExtentId extent = rig.create(64 * kKiB);
  for (int i = 0; i < 60; ++i) {
    REQUIRE(rig.write(extent, 0, bytes_of(kBlockBytes, 5)).done.code == Errc::kOk);
  }
  rig.sim->cut();
  rig.store.reset();
  const test::SimDisk before = *rig.disks[0];
  const auto plan = *plan_geometry(before.size());
  // Among the frames, and after their end.
  const std::uint64_t block = GENERATE(50ULL, 75ULL);
  const std::size_t copy = GENERATE(0U, 1U);
  for (std::size_t area = 0; area < 2; ++area) {
    rig.disks[0]->spoil(plan.area_offset(area, copy) + block * kBlockBytes);
  }
  const auto bad = recover_from(rig);
  CHECK(bad->failed() == 2);  // together with others, and alone
  *rig.disks[0] = before;
  const auto sound = recover_from(rig);
  CHECK(sound->failed() == 0);
  CHECK(bad->submitted() <= sound->submitted() + 1 + block + 1 + 1);
}

TEST_CASE("flash recovery: an operation that ends late is never mistaken for another") {
  Rig rig;
  rig.write_and_cut({5, 6, 7});
  rig.store.reset();
  std::uint64_t late = 0;
  for (;; ++late) {
    // It ends some time after it was given up; the next operation waits for it.
    test::LateDevice device(rig.disks, late, 1201);
    Findings findings;
    BlockingIo io(device);
    const auto volume = recover(io, PathIndex(0), findings);
    device.end_late();
    if (!device.was_late()) break;
    INFO("operation " << late);
    REQUIRE_FALSE(volume.ok());
    CHECK(volume.error().code() == Errc::kDeadline);
    CHECK(device.submitted() == late + 1);
  }
  CHECK(late > 4);  // two superblocks, two copies of the log, data in doubt
}

TEST_CASE("flash recovery: memory of an operation that ends late is not reused") {
  Rig rig;
  rig.disks[0]->write(0, bytes_of(kBlockBytes, 7), 0);
  test::LateDevice device(rig.disks, 0);
  AlignedMemory memory(kBlockBytes);
  const auto into = memory.span();
  std::fill(into.begin(), into.end(), std::byte{1});
  {
    BlockingIo io(device);
    CHECK(io.read(PathIndex(0), 0, into).error().code() == Errc::kDeadline);
    CHECK(io.write(PathIndex(0), 0, into).error().code() == Errc::kDeadline);
    CHECK(io.sync(PathIndex(0)).error().code() == Errc::kDeadline);
  }
  device.end_late();
  Completion done;
  while (device.poll(std::span(&done, 1)) == 0) {
  }
  CHECK(done.code == Errc::kOk);
  CHECK(std::all_of(into.begin(), into.end(), [](std::byte byte) { return byte == std::byte{1}; }));
}

TEST_CASE("flash recovery: reads each copy of the log once, however large the extents are") {
  // Its log areas are longer than the part that recovery of these logs reads.
  const auto disk = std::make_shared<test::SparseDisk>(8 * kGiB);
  // One large extent, or many.
  const std::uint64_t count = GENERATE(1ULL, 10'000ULL);
  {
    ExtentStore::Options options;
    options.extents_max = 20'000;
    options.ops_max = 16;
    Findings findings;
    auto store = ExtentStore::open(std::make_unique<test::SparseDevice>(disk), options, findings);
    REQUIRE(store.ok());
    const std::uint64_t bytes = 1600 * kMiB / count / kBlockBytes * kBlockBytes;
    AlignedMemory memory(kMiB);
    std::fill_n(memory.data(), kMiB, std::byte{5});
    StoreCompletion done;
    std::uint64_t open = 0;
    const auto turn = [&] {
      if ((*store)->poll(std::span(&done, 1)) == 0) return;
      REQUIRE(done.done.code == Errc::kOk);
      --open;
    };
    for (std::uint64_t i = 0; i < count; ++i) {
      auto extent = (*store)->create({bytes, Policy::kDurable});
      for (; !extent; extent = (*store)->create({bytes, Policy::kDurable})) {
        REQUIRE(extent.error().code() == Errc::kBusy);
        turn();
      }
      for (std::uint64_t at = 0; at < bytes;) {
        const std::uint64_t length = std::min(kMiB, bytes - at);
        const auto write = test::write_op(OpId(1), *extent, at, memory.span().first(length));
        if (const auto taken = (*store)->submit(write); !taken) {
          REQUIRE(taken.error().code() == Errc::kBusy);
          turn();
          continue;
        }
        ++open;
        at += length;
      }
    }
    while (open > 0) turn();
    REQUIRE((*store)->close().ok());
  }
  disk->reads = 0;
  disk->read_bytes = 0;
  test::SparseDevice device(disk);
  BlockingIo io(device);
  Findings findings;
  const auto volume = recover(io, PathIndex(0), findings);
  REQUIRE(volume.ok());
  CHECK(volume->table.shards().size() == count);
  // LAYOUT.md: the log, and after its end five of the longest frames and a window.
  const std::uint64_t log = volume->head_bytes;
  REQUIRE(log > 4 * kMiB);
  CHECK(disk->read_bytes >= kCopies * log);
  const std::uint64_t area = disk->geometry.area_bytes;
  REQUIRE(log + 9 * kMiB < area);
  CHECK(disk->read_bytes <= kCopies * (kBlockBytes + log + 9 * kMiB));
  CHECK(disk->reads <= kCopies * (1 + 4 * (log / (3 * kMiB) + 4)));
}
