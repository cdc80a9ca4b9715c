#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <vector>

#include "daemon/tier/flash/store/extent_store.hpp"
#include "tests/unit/flash/late_device.hpp"
#include "tests/unit/flash/store_rig.hpp"

namespace {

using namespace ho;
using namespace ho::flash;
using test::LateDevice;
using Rig = test::StoreRig;

}  // namespace

TEST_CASE("flash store: its device ends after all operations on it") {
  Rig rig;
  bool keep = false;
  auto device = std::make_unique<LateDevice>(
      rig.disks, [&](const DeviceOp&) { return keep; }, 50);
  LateDevice& late = *device;
  std::uint64_t open = UINT64_MAX;
  late.at_end([&](const LateDevice& at_end) { open = at_end.open(); });
  rig.device = std::move(device);
  REQUIRE(rig.open().ok());
  keep = true;
  static_cast<void>(rig.create(64 * kKiB));
  CHECK(rig.store->poll({}) == 0);
  REQUIRE(late.kept().size() == kCopies);  // both copies of its frame
  rig.store.reset();
  CHECK(open == 0);
}

TEST_CASE("flash store: memory of an operation that never ends outlives the store") {
  Rig rig;
  bool keep = false;
  auto device = std::make_unique<LateDevice>(
      rig.disks, [&](const DeviceOp&) { return keep; }, 1 << 30);
  LateDevice& late = *device;
  std::vector<DeviceOp> kept;
  late.at_end([&](const LateDevice& at_end) { kept = at_end.kept(); });
  rig.device = std::move(device);
  REQUIRE(rig.open().ok());
  keep = true;
  static_cast<void>(rig.create(64 * kKiB));
  CHECK(rig.store->poll({}) == 0);
  REQUIRE(late.kept().size() == kCopies);
  std::vector<std::vector<std::byte>> before;
  for (const DeviceOp& op : late.kept()) before.emplace_back(op.memory.begin(), op.memory.end());
  rig.store.reset();
  REQUIRE(kept.size() == kCopies);
  // The device may still do this.
  for (std::size_t i = 0; i < kCopies; ++i) {
    CHECK(std::equal(before[i].begin(), before[i].end(), kept[i].memory.begin()));
  }
}

TEST_CASE("flash store: a close that fails on one path waits for operations on the others") {
  Rig rig;
  rig.disks.push_back(std::make_shared<test::SimDisk>(2 * kMiB));
  bool keep = false;
  const auto second = [&](const DeviceOp& op) { return keep && op.path == PathIndex(1); };
  auto device = std::make_unique<LateDevice>(rig.disks, second, 50);
  LateDevice& late = *device;
  rig.device = std::move(device);
  REQUIRE(rig.open().ok());
  keep = true;
  test::SimFlashFaults faults;
  faults.no_space = 1;
  late.sim().set_faults(faults);
  CHECK(rig.store->close().error().code() == Errc::kIo);
  CHECK(late.was_late());
  CHECK(late.open() == 0);
}
