#include <catch2/catch.hpp>
#include <memory>
#include <vector>

#include "daemon/tier/flash/store.hpp"
#include "tests/unit/flash/sparse_device.hpp"
#include "tests/unit/flash/store_rig.hpp"

namespace {

using namespace ho;
using namespace ho::flash;
using test::bytes_of;
using Rig = test::StoreRig;

}  // namespace

TEST_CASE("flash store: a path with as many durable extents as its log takes can be written") {
  // Frames of up to 64 KiB, so that a full table leaves a log not much more.
  const auto disk = std::make_shared<test::SparseDisk>(171 * kMiB);
  REQUIRE(disk->geometry.frame_bytes_max() == 64 * kKiB);
  Rig rig;
  rig.extents_max = 10'000;
  rig.device = std::make_unique<test::SparseDevice>(disk);
  REQUIRE(rig.open().ok());
  const ExtentId empty = rig.create(kMiB);
  for (;;) {
    const auto made = rig.store->create({{1, 1, 1}, 128 * kKiB, Policy::kDurable});
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
  // A frame for each of its blocks is a few new logs of about an area, not one for each frame.
  const auto bytes = bytes_of(kMiB, 5);
  REQUIRE(rig.store->submit(WriteOp{OpId(1), empty, 0, bytes}).ok());
  CHECK(rig.wait().done.code == Errc::kOk);
}
