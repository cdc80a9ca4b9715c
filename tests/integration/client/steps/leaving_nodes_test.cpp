// Memory and flash of a pool one of whose nodes is drained, has ended the job's session, or is
// back.
#include <hyperoffload/hyperoffload.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <string>
#include <utility>

#include "tests/integration/client/two_nodes.hpp"
#include "tests/integration/flash/staging_client.hpp"
#include "tests/support/skip.hpp"

namespace {

using namespace ho;
using namespace std::chrono_literals;
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

void end_sessions(const TwoNodes& nodes, int node) {
  const auto administrator = test::connect(nodes.address(node));
  for (const SessionInfo& session : nodes.sessions(node)) {
    REQUIRE(administrator->evict(session.id, test::soon()).ok());
  }
}

void lose_and_restart(TwoNodes& nodes, ho_pool* pool, int node, std::uint32_t left) {
  nodes.daemon(node).send(SIGKILL);
  nodes.daemon(node).wait();
  REQUIRE(test::eventually(20s, [&] { return room_of(pool).nodes == left; }));
  nodes.restart(node);
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

TEST_CASE(
    "leaving nodes: where a node has ended the job's session, others give what is asked for") {
  if (skipped()) return;
  TwoNodes nodes({.flash_bytes = kFlashBytes});
  const PoolHandle pool = connect_pool(nodes.address(0), "local");
  ho_flash* flash = nullptr;
  REQUIRE(ho_flash_allocate(pool.get(), kMiB, HO_FLASH_DURABLE, &flash) == HO_OK);
  const int node = test::connect(nodes.address(0))->flash_extents(test::soon())->empty() ? 1 : 0;
  ho_allocation* memory = nullptr;
  ho_flash* other = nullptr;
  SECTION("memory") {
    end_sessions(nodes, node);
    CHECK(ho_allocate(pool.get(), 4 * kMiB, &memory) == HO_OK);
    CHECK(nodes.granted_bytes(1 - node) == 4 * kMiB);
  }
  SECTION("flash") {
    // The node with most of it free is asked first.
    REQUIRE(ho_flash_allocate(pool.get(), 2 * kMiB, HO_FLASH_SCRATCH, &other) == HO_OK);
    CHECK(ho_flash_free(pool.get(), flash) == HO_OK);
    flash = std::exchange(other, nullptr);
    end_sessions(nodes, node);
    CHECK(ho_flash_allocate(pool.get(), kMiB, HO_FLASH_SCRATCH, &other) == HO_OK);
    CHECK(room_of(pool.get()).nodes == 1);
  }
  SECTION("memory beside flash that lies there") {
    end_sessions(nodes, node);
    CHECK(ho_allocate_beside(pool.get(), flash, kMiB, &memory) == HO_UNAVAILABLE);
    CHECK_THAT(ho_last_error(), Catch::Contains("an administrator ended it"));
  }
  ho_free(pool.get(), memory);
  ho_flash_close(flash);
  ho_flash_close(other);
}

TEST_CASE("leaving nodes: a job without a runtime uses a node again that was lost and is back") {
  if (skipped()) return;
  TwoNodes nodes({.flash_bytes = kFlashBytes, .flash_from = 1});
  const PoolHandle pool = connect_pool(nodes.address(0), "local");
  SECTION("for memory that the others have not") {
    lose_and_restart(nodes, pool.get(), 1, 1);
    ho_allocation* memory = nullptr;
    REQUIRE(ho_allocate(pool.get(), 40 * kMiB, &memory) == HO_OK);
    ho_free(pool.get(), memory);
  }
  SECTION("for flash that it alone has") {
    lose_and_restart(nodes, pool.get(), 1, 1);
    ho_flash* flash = nullptr;
    REQUIRE(ho_flash_allocate(pool.get(), kMiB, HO_FLASH_SCRATCH, &flash) == HO_OK);
    CHECK(ho_flash_free(pool.get(), flash) == HO_OK);
  }
  SECTION("where all were lost") {
    lose_and_restart(nodes, pool.get(), 1, 1);
    lose_and_restart(nodes, pool.get(), 0, 0);
    ho_allocation* memory = nullptr;
    REQUIRE(ho_allocate_among(pool.get(), HO_NEAR_NODES, kMiB, &memory) == HO_OK);
    ho_free(pool.get(), memory);
  }
  SECTION("where all have ended the job's session") {
    for (const int node : {0, 1}) end_sessions(nodes, node);
    ho_allocation* memory = nullptr;
    REQUIRE(ho_allocate(pool.get(), kMiB, &memory) == HO_OK);
    ho_free(pool.get(), memory);
  }
}
