#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <vector>

#include "daemon/tier/flash/store/extent_store.hpp"
#include "tests/support/flash_ops.hpp"
#include "tests/unit/flash/late_device.hpp"
#include "tests/unit/flash/store_rig.hpp"

namespace {

using namespace ho;
using namespace ho::flash;
using test::bytes_of;
using test::LateDevice;
using Rig = test::StoreRig;

/// Two paths, each with one durable extent that leaves two blocks free. Syncs of the first path can
/// be delayed: then blocks that it frees do not become free.
struct FullPaths {
  FullPaths() : rig(kMiB) {
    rig.disks.push_back(std::make_shared<test::SimDisk>(kMiB));
    auto device = std::make_unique<LateDevice>(
        rig.disks,
        [this](const DeviceOp& op) {
          return keep && op.kind == DeviceOpKind::kSync && op.path == PathIndex(0);
        },
        1 << 30);
    late = device.get();
    rig.device = std::move(device);
    REQUIRE(rig.open().ok());
    for (int i = 0; i < 2; ++i) {
      const ExtentId extent = rig.create(rig.store->paths()[0].free_bytes - 2 * kBlockBytes);
      paths[Striping(extent, 2).place(0).path.value()] = extent;
      for (int turn = 0; turn < 100; ++turn) REQUIRE(rig.store->poll({}) == 0);
      REQUIRE(rig.write(extent, 0, bytes_of(128 * kKiB, 1)).done.code == Errc::kOk);
    }
    REQUIRE(paths[0] != paths[1]);
  }
  void submit(std::uint64_t op, ExtentId extent, std::uint64_t block,
              std::span<const std::byte> bytes) {
    REQUIRE(rig.store->submit(test::write_op(OpId(op), extent, block * kBlockBytes, bytes)).ok());
  }
  /// Operations that end within this many turns, in order.
  std::vector<OpId> ended(int turns = 300) {
    std::vector<OpId> out;
    for (int i = 0; i < turns; ++i) {
      StoreCompletion done;
      if (rig.store->poll(std::span(&done, 1)) == 0) continue;
      CHECK(done.done.code == Errc::kOk);
      out.push_back(done.done.op);
    }
    return out;
  }

  bool keep = false;
  Rig rig;
  LateDevice* late = nullptr;
  ExtentId paths[2];
};

}  // namespace

TEST_CASE("flash store: a write that waits for a free block of one path delays no other") {
  FullPaths full;
  const auto two = bytes_of(2 * kBlockBytes, 2);
  const auto one = std::span(two).first(kBlockBytes);
  full.keep = true;
  full.submit(1, full.paths[0], 0,
              two);  // takes the last blocks, and frees its old ones when durable
  full.submit(2, full.paths[0], 8, two);
  full.submit(3, full.paths[1], 0, two);
  CHECK(full.ended() == std::vector{OpId(3)});
  // Operations that need no new block do not wait: a read of the same path.
  auto into = bytes_of(kBlockBytes, 0);
  REQUIRE(
      full.rig.store->submit(test::read_op(OpId(4), full.paths[0], 16 * kBlockBytes, into)).ok());
  full.submit(5, full.paths[1], 8, one);
  const auto passed = full.ended();
  CHECK(passed.size() == 2);
  CHECK(std::count(passed.begin(), passed.end(), OpId(4)) == 1);
  full.late->end_late();
  CHECK(full.ended() == std::vector{OpId(1), OpId(2)});
  full.rig.store->check_space();
}

TEST_CASE("flash store: free blocks of a path go to waiting writes in order") {
  FullPaths full;
  const auto two = bytes_of(2 * kBlockBytes, 2);
  const auto one = std::span(two).first(kBlockBytes);
  full.keep = true;
  full.submit(1, full.paths[0], 0, two);
  CHECK(full.ended().empty());
  full.submit(2, full.paths[0], 8, two);
  CHECK(full.ended().empty());
  // Later writes would fit as well.
  for (std::uint64_t op = 3; op < 7; ++op) full.submit(op, full.paths[0], 8 + 2 * op, one);
  CHECK(full.ended().empty());
  full.late->end_late();
  const auto order = full.ended();
  REQUIRE(order.size() == 6);
  CHECK(order[0] == OpId(1));
  CHECK(order[1] == OpId(2));
}

TEST_CASE("flash store: a block that becomes free while others start goes to a waiting write") {
  FullPaths full;
  const auto one = bytes_of(kBlockBytes, 2);
  // Takes one of the first path's two free blocks, or one of the second path's if the stripe is
  // there.
  ExtentId scratch;
  do {
    scratch = full.rig.create(kBlockBytes, Policy::kScratch);
  } while (Striping(scratch, 2).place(0).path != PathIndex(0));
  full.keep = true;
  full.submit(1, full.paths[0], 0, one);
  CHECK(full.ended().empty());
  full.submit(2, full.paths[0], 8, one);
  CHECK(full.ended().empty());
  // The free and the write after it begin in one turn.
  REQUIRE(full.rig.store->submit(FreeOp{OpId(3), scratch}).ok());
  full.submit(4, full.paths[0], 16, one);
  CHECK(full.ended() == std::vector{OpId(3)});
  full.late->end_late();
  CHECK(full.ended() == std::vector{OpId(1), OpId(2), OpId(4)});
  full.rig.store->check_space();
}
