#include <catch2/catch.hpp>
#include <memory>
#include <vector>

#include "daemon/tier/flash/store/extent_store.hpp"
#include "tests/support/flash_ops.hpp"
#include "tests/unit/flash/sparse_device.hpp"
#include "tests/unit/flash/store_rig.hpp"

namespace {

using namespace ho;
using namespace ho::flash;
using test::bytes_of;
using Rig = test::StoreRig;

}  // namespace

TEST_CASE("flash store: a path with the most durable extents that its log allows can be written") {
  // Frames of up to 64 KiB, so that a full table leaves little more than that in a log.
  const auto disk = std::make_shared<test::SparseDisk>(171 * kMiB);
  REQUIRE(disk->geometry.frame_bytes_max() == 64 * kKiB);
  Rig rig;
  rig.extents_max = 10'000;
  rig.device = std::make_unique<test::SparseDevice>(disk);
  REQUIRE(rig.open().ok());
  const ExtentId empty = rig.create(kMiB);
  for (;;) {
    const auto made = rig.store->create({128 * kKiB, Policy::kDurable});
    if (made.ok() || made.error().code() == Errc::kBusy) {
      REQUIRE(rig.store->poll({}) == 0);
      continue;
    }
    CHECK(made.error().context() == "sparse: its log has no room for another durable extent");
    break;
  }
  REQUIRE(rig.store->close().ok());
  const std::uint64_t log = disk->geometry.area_bytes;
  rig.device = std::make_unique<test::SparseDevice>(disk);
  REQUIRE(rig.open(16 * log, 11).ok());
  CHECK(rig.store->paths()[0].wear.day_bytes < 2 * log);
  // One frame per block costs a few new logs of about one area each, not one log per frame.
  const auto bytes = bytes_of(kMiB, 5);
  REQUIRE(rig.store->submit(test::write_op(OpId(1), empty, 0, bytes)).ok());
  CHECK(rig.wait().done.code == Errc::kOk);
}

TEST_CASE(
    "flash store: a write that fits the budget without those in flight is busy until they end") {
  Rig rig;
  REQUIRE(rig.open(0).ok());
  const ExtentId extent = rig.create(512 * kKiB);
  REQUIRE(rig.store->close().ok());
  REQUIRE(rig.open(kMiB, 11).ok());
  const auto data = bytes_of(64 * kKiB, 1);
  const auto all = bytes_of(512 * kKiB, 1);
  // Six writes need 192 KiB each in the worst case, and really write a third of it and few frames.
  std::uint64_t taken = 0;
  std::uint64_t ended = 0;
  int busy = 0;
  while (taken < 6) {
    const auto write =
        rig.store->submit(test::write_op(OpId(taken), extent, taken * 64 * kKiB, data));
    if (write) {
      ++taken;
      continue;
    }
    REQUIRE(write.error().code() == Errc::kBusy);
    ++busy;
    // A write that cannot fit alone is refused at once.
    CHECK(rig.store->submit(test::write_op(OpId(9), extent, 0, all)).error().code() ==
          Errc::kExhausted);
    REQUIRE(rig.wait().done.code == Errc::kOk);
    ++ended;
  }
  for (; ended < taken; ++ended) CHECK(rig.wait().done.code == Errc::kOk);
  CHECK(busy > 0);
}
