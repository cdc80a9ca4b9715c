// What a store knows of an extent besides its bytes.
#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <span>
#include <string>

#include "daemon/tier/flash/store/extent_store.hpp"
#include "tests/unit/flash/store_rig.hpp"

namespace {

using namespace ho;
using namespace ho::flash;
using test::bytes_of;
using Rig = test::StoreRig;

}  // namespace

TEST_CASE("flash store: the secret of an extent opens it after a restart and is not on the path") {
  Rig rig;
  REQUIRE(rig.open().ok());
  constexpr std::uint64_t kSecret = 0x1122334455667788;
  ExtentSpec spec{64 * kKiB, Policy::kDurable, 5,
                  kSecret,   "uid 1000",       std::string(39, 'x') + "\u00e9"};
  const auto made = rig.store->create(spec);
  REQUIRE(made.ok());
  REQUIRE(rig.write(*made, 0, bytes_of(4096, 7)).done.code == Errc::kOk);
  REQUIRE(rig.store->close().ok());
  REQUIRE(rig.open().ok());
  CHECK(rig.store->opens(*made, kSecret));
  CHECK_FALSE(rig.store->opens(*made, kSecret ^ 1));
  CHECK_FALSE(rig.store->opens(ExtentId(made->value() + 1), kSecret));
  const auto all = rig.disks[0]->current();
  const auto secret = std::as_bytes(std::span(&kSecret, 1));
  CHECK(std::search(all.begin(), all.end(), secret.begin(), secret.end()) == all.end());
  const auto info = rig.store->find(*made);
  REQUIRE(info.has_value());
  CHECK(info->session == 0);
  CHECK(info->about.owner == "uid 1000");
  CHECK(info->about.label == std::string(39, 'x'));  // no half of a character
}

TEST_CASE("flash store: when an extent was made and last in use is known after a crash") {
  Rig rig;
  rig.disks.push_back(std::make_shared<test::SimDisk>(2 * kMiB));
  REQUIRE(rig.open(0, 10).ok());
  const ExtentId extent = rig.create(2 * kMiB);
  const ExtentId other = rig.create(4096);
  REQUIRE(rig.write(extent, 0, bytes_of(4096, 7)).done.code == Errc::kOk);
  rig.store->set_time(test::day_of(12));
  rig.store->note_used(extent);
  rig.store->note_used(ExtentId(77));
  REQUIRE(rig.write(extent, 0, bytes_of(4096, 8)).done.code == Errc::kOk);
  REQUIRE(rig.store->close().ok());
  for (int start = 0; start < 2; ++start) {  // from the records, and from a snapshot
    if (start == 0) rig.sim->cut();
    REQUIRE(rig.open(0, 13).ok());
    CHECK(rig.store->find(extent)->about.created == test::day_of(10));
    CHECK(rig.store->find(extent)->about.used == test::day_of(12));
    CHECK(rig.store->find(other)->about.used == test::day_of(10));
    REQUIRE(rig.store->close().ok());
  }
}
