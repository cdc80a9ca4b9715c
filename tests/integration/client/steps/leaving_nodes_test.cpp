// Memory and flash of a pool one of whose nodes is drained, has ended the job's session, or is
// back.
#include <hyperoffload/hyperoffload.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/prng.hpp"
#include "tests/integration/client/two_nodes.hpp"
#include "tests/integration/flash/staging_client.hpp"
#include "tests/support/skip.hpp"
#include "tests/support/stderr_capture.hpp"

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

/// Memory that a job writes and reads itself, beside a model of it.
class Notebook {
 public:
  static constexpr std::uint64_t kBytes = 12U << 20U;

  explicit Notebook(ho_pool* pool) : pool_(pool) {
    REQUIRE(ho_register(pool_, host_.data(), host_.size()) == HO_OK);
    REQUIRE(ho_allocate(pool_, kBytes, &memory_) == HO_OK);
    REQUIRE(fill(1) == HO_OK);
  }
  ~Notebook() {
    ho_free(pool_, memory_);
    (void)ho_unregister(pool_, host_.data());
  }
  Notebook(const Notebook&) = delete;
  Notebook& operator=(const Notebook&) = delete;

  ho_status fill(std::uint64_t seed) { return ho_wait(pool_, begin_fill(seed)); }
  std::uint64_t begin_fill(std::uint64_t seed) {
    test::fill(model_, seed);
    host_ = model_;
    std::uint64_t ticket = 0;
    REQUIRE(ho_put(pool_, memory_, 0, host_.data(), kBytes, &ticket) == HO_OK);
    return ticket;
  }
  /// Overwrites some bytes, then reads all. @return the first status that is not HO_OK.
  ho_status turn(Prng& random) {
    const std::uint64_t bytes = 1 + random.below(kBytes / 4);
    const std::uint64_t at = random.below(kBytes - bytes);
    const std::span<std::byte> part(model_.data() + at, bytes);
    test::fill(part, random.next());
    std::copy(part.begin(), part.end(), host_.begin() + static_cast<std::ptrdiff_t>(at));
    const auto put = wait([&](std::uint64_t* ticket) {
      return ho_put(pool_, memory_, at, host_.data() + at, bytes, ticket);
    });
    return put == HO_OK ? compare() : put;
  }
  ho_status compare() {
    std::fill(host_.begin(), host_.end(), std::byte{});
    const auto got = wait([&](std::uint64_t* ticket) {
      return ho_get(pool_, memory_, 0, host_.data(), kBytes, ticket);
    });
    right_ = right_ && (got != HO_OK || host_ == model_);
    return got;
  }
  [[nodiscard]] bool right() const { return right_; }

 private:
  template <typename Start>
  ho_status wait(const Start& start) {
    std::uint64_t ticket = 0;
    const ho_status started = start(&ticket);
    return started == HO_OK ? ho_wait(pool_, ticket) : started;
  }

  ho_pool* pool_;
  ho_allocation* memory_ = nullptr;
  std::vector<std::byte> host_ = std::vector<std::byte>(kBytes);
  std::vector<std::byte> model_ = std::vector<std::byte>(kBytes);
  bool right_ = true;
};

constexpr test::PoolSpec kThree{.ddr_bytes = 64U << 20U, .lease_ms = 1500, .nodes = 3};

bool is_left(const TwoNodes& nodes, int node) {
  return test::eventually(60s, [&] { return nodes.granted_bytes(node) == 0; });
}

void drain(const TwoNodes& nodes, int node) {
  REQUIRE(test::connect(nodes.address(node))->drain(test::soon()).ok());
}

/// A job looks for nodes that have come when it opens a runtime.
void look_for_nodes(ho_pool* pool) {
  std::vector<std::byte> arena(4096);
  ho_device_memory memory{};
  memory.struct_bytes = sizeof(memory);
  memory.arena = arena.data();
  memory.arena_bytes = arena.size();
  ho_runtime* runtime = nullptr;
  REQUIRE(ho_open(pool, &memory, &runtime) == HO_OK);
  ho_close(runtime);
}

void kill(TwoNodes& nodes, int node) {
  nodes.daemon(node).send(SIGKILL);
  nodes.daemon(node).wait();
}

}  // namespace

TEST_CASE("leaving nodes: allocated memory leaves a drained node, whether the job uses it or not") {
  for (const char* transport : {"auto", "tcp"}) {
    INFO("transport " << transport);
    TwoNodes nodes(kThree);
    const PoolHandle pool = connect_pool(nodes.address(0), transport);
    Notebook idle(pool.get());
    Notebook used(pool.get());
    Prng random(7);
    for (const int victim : {0, 1}) {
      REQUIRE(nodes.granted_bytes(victim) > 0);
      drain(nodes, victim);
      const auto end = std::chrono::steady_clock::now() + 60s;
      while (nodes.granted_bytes(victim) > 0) {
        REQUIRE(std::chrono::steady_clock::now() < end);
        REQUIRE(used.turn(random) == HO_OK);
      }
      kill(nodes, victim);
      REQUIRE(used.turn(random) == HO_OK);
    }
    REQUIRE(idle.compare() == HO_OK);
    CHECK((idle.right() && used.right()));
  }
}

TEST_CASE("leaving nodes: what is put into allocated memory that moves is not lost") {
  TwoNodes nodes({.ddr_bytes = 64U << 20U, .lease_ms = 1500});
  // So slow that segments move while the bytes are put.
  const PoolHandle pool = connect_pool(nodes.address(0), "tcp", "slow", 4U << 20U, 60'000);
  Notebook memory(pool.get());
  const std::uint64_t before = nodes.granted_bytes(1);
  SECTION("with a put that began before") {
    const std::uint64_t ticket = memory.begin_fill(2);
    drain(nodes, 0);
    REQUIRE(ho_wait(pool.get(), ticket) == HO_OK);
  }
  SECTION("with one that begins meanwhile") {
    drain(nodes, 0);
    REQUIRE(test::eventually(60s, [&] { return nodes.granted_bytes(1) > before; }));
    REQUIRE(memory.fill(2) == HO_OK);
  }
  CHECK(is_left(nodes, 0));
  REQUIRE(memory.compare() == HO_OK);
  CHECK(memory.right());
}

TEST_CASE("leaving nodes: allocated memory that no node has room for stays, with what it has") {
  TwoNodes nodes({.ddr_bytes = 16U << 20U, .lease_ms = 1500});
  const PoolHandle pool = connect_pool(nodes.address(0), "auto");
  const test::StderrCapture captured;
  Notebook memory(pool.get());
  REQUIRE(nodes.granted_bytes(0) > 0);
  const PoolHandle other = connect_pool(nodes.address(1), "auto", "other");
  ho_allocation* rest = nullptr;
  REQUIRE(ho_allocate_among(other.get(), HO_ALL_NODES, room_of(other.get()).ddr_bytes, &rest) ==
          HO_OK);
  drain(nodes, 0);
  CHECK(test::eventually(60s, [&] {
    return captured.text().find("stays on drained nodes for now") != std::string::npos;
  }));
  CHECK(nodes.granted_bytes(0) > 0);
  Prng random(7);
  REQUIRE(memory.turn(random) == HO_OK);
  SECTION("until there is some") {
    ho_free(other.get(), rest);
    CHECK(is_left(nodes, 0));
    kill(nodes, 0);
  }
  SECTION("where the drain is taken back") {
    REQUIRE(test::connect(nodes.address(0))->undrain(test::soon()).ok());
    ho_free(other.get(), rest);
  }
  REQUIRE(memory.turn(random) == HO_OK);
  CHECK(memory.right());
}

TEST_CASE("leaving nodes: a node that is lost while allocated memory moves") {
  TwoNodes nodes(kThree);
  kill(nodes, 2);
  // So slow that segments are under way when a node is killed.
  const PoolHandle pool = connect_pool(nodes.address(0), "tcp", "slow", 2U << 20U, 60'000);
  auto memory = std::make_unique<Notebook>(pool.get());
  nodes.restart(2);
  look_for_nodes(pool.get());
  REQUIRE(room_of(pool.get()).nodes == 3);
  drain(nodes, 0);
  REQUIRE(test::eventually(60s, [&] { return nodes.granted_bytes(2) > 0; }));
  SECTION("and was to take it changes nothing") {
    kill(nodes, 2);
    REQUIRE(memory->compare() == HO_OK);
    CHECK(is_left(nodes, 0));
    kill(nodes, 0);
    REQUIRE(memory->compare() == HO_OK);
  }
  SECTION("and is the drained one takes the bytes with it") {
    kill(nodes, 0);
    CHECK(memory->compare() == HO_UNAVAILABLE);
    CHECK_THAT(ho_last_error(), Catch::Contains("(n0"));
  }
  SECTION("or no node, where the job frees the memory") {
    memory.reset();
    for (const int node : {0, 1, 2}) CHECK(nodes.granted_bytes(node) == 0);
  }
  CHECK((memory == nullptr || memory->right()));
}

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
