// Memory and flash of a pool one of whose nodes is drained, has ended the job's session, or is
// back.
#include <hyperoffload/hyperoffload.h>

#include <catch2/catch.hpp>
#include <string>

#include "tests/integration/client/two_nodes.hpp"
#include "tests/integration/flash/staging_client.hpp"
#include "tests/support/skip.hpp"

namespace {

using namespace ho;
using test::connect_pool;
using test::PoolHandle;
using test::TwoNodes;

constexpr std::uint64_t kFlashBytes = 16U << 20U;

bool skipped() {
  const test::TempFolder folder;
  test::make_file(folder.file("flash"), 2 * kMiB);
  const std::string why = test::no_flash_here(folder.file("flash"));
  if (!why.empty()) test::skip(why);
  return !why.empty();
}

ho_pool_room room_of(ho_pool* pool) {
  ho_pool_room room{};
  room.struct_bytes = sizeof(room);
  REQUIRE(ho_pool_get_room(pool, HO_ALL_NODES, &room) == HO_OK);
  return room;
}

}  // namespace

TEST_CASE("leaving nodes: flash comes from another node than a drained one") {
  if (skipped()) return;
  TwoNodes nodes({.flash_bytes = kFlashBytes});
  const PoolHandle pool = connect_pool(nodes.address(0), "local");
  const std::uint64_t before = room_of(pool.get()).flash_bytes;
  ho_flash* flash = nullptr;
  for (const int node : {0, 1}) {
    CAPTURE(node);
    REQUIRE(test::connect(nodes.address(node))->drain(test::soon()).ok());
    CHECK(room_of(pool.get()).flash_bytes == before / 2);
    REQUIRE(ho_flash_allocate(pool.get(), kMiB, HO_FLASH_SCRATCH, &flash) == HO_OK);
    CHECK(ho_flash_free(pool.get(), flash) == HO_OK);
    REQUIRE(test::connect(nodes.address(node))->undrain(test::soon()).ok());
  }
  for (const int node : {0, 1}) {
    REQUIRE(test::connect(nodes.address(node))->drain(test::soon()).ok());
  }
  CHECK(room_of(pool.get()).flash_bytes == 0);
  CHECK(ho_flash_allocate(pool.get(), kMiB, HO_FLASH_SCRATCH, &flash) == HO_UNAVAILABLE);
  CHECK_THAT(ho_last_error(), Catch::Contains("drained"));
}
