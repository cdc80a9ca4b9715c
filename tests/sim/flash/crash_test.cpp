#include <algorithm>
#include <catch2/catch.hpp>
#include <string>

#include "tests/sim/flash/flash_world.hpp"
#include "tests/support/seeds.hpp"

namespace {

using namespace ho;
using test::FlashWorld;
using test::for_each_seed;
using test::SimFlashFaults;

const std::uint64_t kCrashSeeds = test::seed_count(200);
const std::uint64_t kErrorSeeds = test::seed_count(60);
const std::uint64_t kFlipSeeds = test::seed_count(30);

/// Whether recovery found a last frame with missing data.
bool data_was_missing(const FlashWorld& world) {
  return std::any_of(world.findings().begin(), world.findings().end(), [](const std::string& one) {
    return one.find("blocks is missing") != std::string::npos;
  });
}

/// Opens the store until it succeeds; the power may also be cut while it opens.
void open_after_crash(FlashWorld& world) {
  for (int i = 0; i < 2 && world.random().below(3) == 0; ++i) {
    SimFlashFaults dies;
    dies.dies_after = world.random().below(60);
    dies.killed = world.any_crash() == FlashWorld::Crash::kKill;
    // The store is open; the cut comes later, with nothing in flight.
    static_cast<void>(world.open(dies));
    world.crash(world.any_crash());
  }
  INFO(world.open_error());
  const bool opened = world.open({});
  if (!opened) FAIL("open: " << world.open_error());
  world.verify();
  REQUIRE(world.wrong() == "");
}

}  // namespace

TEST_CASE("flash sim: after any crash every acknowledged durable write reads back right") {
  std::uint64_t acknowledged = 0;
  std::uint64_t cut_midway = 0;
  std::uint64_t missing = 0;
  for_each_seed(kCrashSeeds, [&](std::uint64_t seed) {
    FlashWorld world(seed);
    REQUIRE(world.open({}));
    for (int round = 0; round < 3; ++round) {
      world.run(20 + world.random().below(60));
      REQUIRE(world.wrong() == "");
      if (world.random().below(3) == 0) world.drain();
      world.crash(world.any_crash());
      REQUIRE(world.wrong() == "");
      open_after_crash(world);
      missing += data_was_missing(world) ? 1 : 0;
      SimFlashFaults dies;
      dies.dies_after = world.random().below(150);
      dies.killed = world.any_crash() == FlashWorld::Crash::kKill;
      world.close();
      REQUIRE(world.wrong() == "");
      if (world.open(dies)) {
        world.run(20 + world.random().below(60));
        cut_midway += world.dead() ? 1 : 0;
      }
      REQUIRE(world.wrong() == "");
      world.crash(world.any_crash());
      open_after_crash(world);
    }
    world.close();
    REQUIRE(world.wrong() == "");
    acknowledged += world.acknowledged();
  });
  // Checks that the load has writes to lose and is cut in the middle of them.
  if (!test::only_seed()) {
    CHECK(acknowledged > kCrashSeeds * 20);
    CHECK(cut_midway > kCrashSeeds);
    CHECK(missing > kCrashSeeds / 20);
  }
}

TEST_CASE("flash sim: nothing acknowledged is dropped when power is cut with nothing under way") {
  for_each_seed(kErrorSeeds, [&](std::uint64_t seed) {
    FlashWorld world(seed);
    REQUIRE(world.open({}));
    world.run(10 + world.random().below(20));
    world.drain();  // so that the last acknowledgements are new
    world.crash();
    REQUIRE(world.open({}));
    CHECK_FALSE(data_was_missing(world));
    world.verify();
    REQUIRE(world.wrong() == "");
    world.close();
  });
}

TEST_CASE("flash sim: I/O errors and full devices fail operations and never give wrong bytes") {
  std::uint64_t failures = 0;
  for_each_seed(kErrorSeeds, [&](std::uint64_t seed) {
    FlashWorld world(seed);
    REQUIRE(world.open({}));
    world.run(40);
    REQUIRE(world.wrong() == "");
    world.close();
    SimFlashFaults faults;
    faults.io_error = 0.01;
    faults.no_space = seed % 2 == 0 ? 0.02 : 0;
    if (world.open(faults)) {
      world.run(150);
      world.drain();
    }
    REQUIRE(world.wrong() == "");
    failures += world.failures();
    world.crash();
    REQUIRE(world.open({}));
    world.verify();
    REQUIRE(world.wrong() == "");
    world.close();
  });
  if (!test::only_seed()) CHECK(failures > kErrorSeeds);
}

TEST_CASE("flash sim: a flipped bit of data is found, named, and harms nothing else") {
  std::uint64_t flipped = 0;
  for_each_seed(kFlipSeeds, [&](std::uint64_t seed) {
    FlashWorld world(seed);
    REQUIRE(world.open({}));
    world.run(60);
    // With and without an orderly end: an acknowledgement of some time ago does not count as new.
    if (seed % 2 == 0) {
      world.close();
    } else {
      world.rest();
      world.crash();
    }
    REQUIRE(world.wrong() == "");
    const bool flipped_one = world.flip_data_bit();
    REQUIRE(world.wrong() == "");
    if (!flipped_one) return;
    ++flipped;
    REQUIRE(world.open({}));
    world.verify();
    REQUIRE(world.wrong() == "");
    CHECK(world.corrupt_reads() == 1);
    world.close();
  });
  if (!test::only_seed()) CHECK(flipped > kFlipSeeds / 2);
}

TEST_CASE("flash sim: after a kill a rotten block of the last acknowledged write is corrupt") {
  std::uint64_t flipped = 0;
  for_each_seed(kErrorSeeds, [&](std::uint64_t seed) {
    FlashWorld world(seed);
    REQUIRE(world.open({}));
    world.run(10 + world.random().below(60));
    if (seed % 2 == 0) world.drain();
    world.crash(FlashWorld::Crash::kKill);
    REQUIRE(world.wrong() == "");
    const bool flipped_one = world.flip_last_write();
    REQUIRE(world.wrong() == "");
    REQUIRE(world.open({}));
    world.verify();
    REQUIRE(world.wrong() == "");
    CHECK(world.corrupt_reads() == (flipped_one ? 1 : 0));
    flipped += flipped_one ? 1 : 0;
    world.close();
  });
  if (!test::only_seed()) CHECK(flipped > kErrorSeeds / 2);
}

TEST_CASE("flash sim: flipped bits in one copy of the metadata harm nothing") {
  std::uint64_t noticed = 0;
  for_each_seed(kFlipSeeds, [&](std::uint64_t seed) {
    FlashWorld world(seed);
    REQUIRE(world.open({}));
    world.run(60);
    world.close();
    world.flip_metadata_bit(seed % 2);
    REQUIRE(world.open({}));
    noticed += world.findings().empty() ? 0 : 1;
    world.verify();
    REQUIRE(world.wrong() == "");
    world.close();
  });
  if (!test::only_seed()) CHECK(noticed > kFlipSeeds / 2);
}
