// Freeing flash whose node does not answer, or answers too late.
#include <hyperoffload/hyperoffload.h>

#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <string>

#include "tests/integration/client/two_nodes.hpp"
#include "tests/integration/flash/staging_client.hpp"
#include "tests/support/skip.hpp"

namespace {

using namespace ho;
using namespace std::chrono_literals;
using test::connect_pool;
using test::PoolHandle;
using test::TwoNodes;

constexpr test::PoolSpec kPool{32U << 20U, 500, false, 16U << 20U};
// For a session that is never renewed.
constexpr test::PoolSpec kLongLease{32U << 20U, test::kLongLeaseMs, false, 16U << 20U};

std::string no_flash() {
  const test::TempFolder folder;
  test::make_file(folder.file("flash"), 2 * kMiB);
  return test::no_flash_here(folder.file("flash"));
}

#define SKIP_WITHOUT_FLASH()                              \
  if (const std::string why = no_flash(); !why.empty()) { \
    test::skip(why);                                      \
    return;                                               \
  }

std::size_t extents(const TwoNodes& nodes, int node) {
  const auto listed = test::connect(nodes.address(node))->flash_extents(test::soon());
  REQUIRE(listed.ok());
  return listed->size();
}

/// The node that has the one extent.
int node_with_flash(const TwoNodes& nodes) { return extents(nodes, 0) == 1 ? 0 : 1; }

}  // namespace

TEST_CASE("flash free: what a daemon makes after the client's deadline is freed again") {
  SKIP_WITHOUT_FLASH();
  TwoNodes nodes(kLongLease);
  const auto client = test::connect(nodes.address(0));
  const auto session = client->open_session("late", test::soon());
  REQUIRE(session.ok());
  for (const FlashPolicy policy : {FlashPolicy::kDurable, FlashPolicy::kScratch}) {
    nodes.daemon(0).send(SIGSTOP);
    const auto made =
        client->flash_allocate(*session, kMiB, policy, SteadyClock().now() + Duration(100ms));
    nodes.daemon(0).send(SIGCONT);
    REQUIRE_FALSE(made.ok());
    CHECK(made.error().code() == Errc::kDeadline);
    // The daemon answers in order, so it has handled the first request by now.
    const auto next = client->flash_allocate(*session, kMiB, policy, test::soon());
    REQUIRE(next.ok());
    CHECK(test::eventually(60s, [&] { return extents(nodes, 0) == 1; }));
    REQUIRE(client->flash_free(*session, next->id, test::soon()));
    CHECK(extents(nodes, 0) == 0);
  }
}

TEST_CASE("flash free: a node that does not answer leaves the handle for another try") {
  SKIP_WITHOUT_FLASH();
  TwoNodes nodes(kPool);
  const PoolHandle pool = connect_pool(nodes.address(0), "local");
  ho_flash* flash = nullptr;
  REQUIRE(ho_flash_allocate(pool.get(), kMiB, HO_FLASH_DURABLE, &flash) == HO_OK);
  const int node = node_with_flash(nodes);
  nodes.daemon(node).send(SIGSTOP);
  CHECK(ho_flash_free(pool.get(), flash) == HO_DEADLINE);
  CHECK(ho_flash_bytes(flash) == kMiB);
  nodes.daemon(node).send(SIGCONT);
  ho_status status = HO_DEADLINE;
  CHECK(test::eventually(60s, [&] {
    status = ho_flash_free(pool.get(), flash);
    return status != HO_DEADLINE;
  }));
  CHECK((status == HO_OK || status == HO_NOT_FOUND));
  if (status != HO_OK) ho_flash_close(flash);
  // HO_NOT_FOUND means that the first free is under way, not that it is done.
  CHECK(test::eventually(60s, [&] { return extents(nodes, node) == 0; }));
}

TEST_CASE("flash free: a lost node says so, and its durable flash stays") {
  SKIP_WITHOUT_FLASH();
  TwoNodes nodes(kPool);
  const PoolHandle pool = connect_pool(nodes.address(0), "local");
  ho_flash* flash = nullptr;
  REQUIRE(ho_flash_allocate(pool.get(), kMiB, HO_FLASH_DURABLE, &flash) == HO_OK);
  const int node = node_with_flash(nodes);
  nodes.daemon(node).send(SIGKILL);
  CHECK(nodes.daemon(node).wait().signal == SIGKILL);
  CHECK(ho_flash_free(pool.get(), flash) == HO_UNAVAILABLE);
  CHECK(std::string(ho_last_error()).find("node ") != std::string::npos);
  ho_flash_close(flash);
  nodes.restart(node);
  CHECK(extents(nodes, node) == 1);
  CHECK(ho_flash_free(pool.get(), nullptr) == HO_OK);
}

TEST_CASE("flash free: to a session that has ended flash is unavailable, which is not gone") {
  SKIP_WITHOUT_FLASH();
  TwoNodes nodes(kLongLease);
  const PoolHandle pool = connect_pool(nodes.address(0), "local");
  ho_flash* flash = nullptr;
  REQUIRE(ho_flash_allocate(pool.get(), kMiB, HO_FLASH_DURABLE, &flash) == HO_OK);
  std::array<char, HO_FLASH_NAME_BYTES> name{};
  REQUIRE(ho_flash_name(pool.get(), flash, name.data(), name.size()) == HO_OK);
  const int node = node_with_flash(nodes);
  const auto administrator = test::connect(nodes.address(node));
  const auto sessions = administrator->sessions(test::soon());
  REQUIRE(sessions.ok());
  REQUIRE(sessions->size() == 1);
  const auto evicted = administrator->evict(sessions->front().id, test::soon());
  INFO((evicted ? "" : evicted.error().message()));
  REQUIRE(evicted.ok());
  SECTION("opened") {
    ho_flash* again = nullptr;
    CHECK(ho_flash_open(pool.get(), name.data(), &again) == HO_UNAVAILABLE);
  }
  SECTION("freed") { CHECK(ho_flash_free(pool.get(), flash) == HO_UNAVAILABLE); }
  CHECK(std::string(ho_last_error()).find("an administrator ended it") != std::string::npos);
  CHECK(extents(nodes, node) == 1);
  ho_flash_close(flash);
}
