#include <hyperoffload/blocks.h>
#include <hyperoffload/hyperoffload.h>
#include <hyperoffload/objects.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <cstring>
#include <hyperoffload/hyperoffload.hpp>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "common/base/prng.hpp"
#include "proto/files/convert.hpp"
#include "tests/integration/client/steps/planned_job.hpp"
#include "tests/integration/client/two_nodes.hpp"
#include "tests/sim/job/random_schedule.hpp"
#include "tests/support/few_files.hpp"
#include "tests/unit/analyzer/graphs.hpp"
#include "tools/analyzer/analyzer.hpp"

namespace {

using namespace ho;
using test::connect_pool;
using test::PlannedJob;
using test::PoolHandle;
using test::TwoNodes;

schedule::Schedule some_schedule(std::uint64_t seed) {
  Prng random(seed);
  return test::random_schedule(random);
}

std::vector<std::byte> pattern(std::size_t bytes, std::uint64_t seed) {
  Prng random(seed);
  std::vector<std::byte> made(bytes);
  for (auto& byte : made) byte = static_cast<std::byte>(random.next());
  return made;
}

void round_trip(ho_pool* pool, std::size_t bytes, std::uint64_t offset) {
  ho_allocation* memory = nullptr;
  REQUIRE(ho_allocate(pool, offset + bytes, &memory) == HO_OK);
  auto sent = pattern(bytes, bytes);
  std::vector<std::byte> received(bytes);
  REQUIRE(ho_register(pool, sent.data(), bytes) == HO_OK);
  REQUIRE(ho_register(pool, received.data(), bytes) == HO_OK);
  std::uint64_t ticket = 0;
  REQUIRE(ho_put(pool, memory, offset, sent.data(), bytes, &ticket) == HO_OK);
  CHECK(ho_wait(pool, ticket) == HO_OK);
  CHECK(ho_wait(pool, ticket) == HO_NOT_FOUND);
  REQUIRE(ho_get(pool, memory, offset, received.data(), bytes, &ticket) == HO_OK);
  CHECK(ho_wait(pool, ticket) == HO_OK);
  CHECK(received == sent);
  CHECK(ho_unregister(pool, sent.data()) == HO_OK);
  CHECK(ho_unregister(pool, received.data()) == HO_OK);
  ho_free(pool, memory);
}

}  // namespace

TEST_CASE("client: put and get return the same bytes over every transport") {
  TwoNodes nodes;
  for (const char* transport : {"auto", "tcp"}) {
    const PoolHandle pool = connect_pool(nodes.address(0), transport);
    const bool tcp = std::strcmp(transport, "tcp") == 0;
    CHECK(ho_pool_transport(pool.get()) == std::string(tcp ? "tcp" : "local"));
    for (const std::size_t bytes : {1U, 4096U, 1234567U, 9U << 20U})
      round_trip(pool.get(), bytes, 0);
    round_trip(pool.get(), 5 << 20, 2097152 - 3);
  }
  CHECK(nodes.granted_bytes(0) == 0);
  CHECK(nodes.granted_bytes(1) == 0);
}

TEST_CASE("client: a link with a limit moves the same bytes, no faster than that") {
  TwoNodes nodes;
  for (const char* transport : {"auto", "tcp"}) {
    hyperoffload::Pool::Options options;
    options.pool = nodes.address(0);
    options.transport = transport;
    options.link_bytes_per_s = 50'000'000;
    const hyperoffload::Pool pool(options);
    const auto start = std::chrono::steady_clock::now();
    round_trip(pool.get(), 5'000'000, 4096);
    // There and back once, less what the pacing may catch up.
    CHECK(std::chrono::steady_clock::now() - start >= std::chrono::milliseconds(190));
  }
}

TEST_CASE("client: a node of this machine that is named by TCP is reached like the others") {
  TwoNodes nodes({.tcp = true});
  for (const char* transport : {"auto", "local"}) {
    const PoolHandle pool = connect_pool(nodes.tcp_address(0), transport);
    CHECK(ho_pool_transport(pool.get()) == std::string("local"));
    round_trip(pool.get(), 5 << 20, 0);
  }
  const PoolHandle pool = connect_pool(nodes.tcp_address(0), "tcp");
  CHECK(ho_pool_transport(pool.get()) == std::string("tcp"));
}

TEST_CASE("client: an allocation is spread over both daemons, even a small one") {
  TwoNodes nodes;
  const PoolHandle pool = connect_pool(nodes.address(0), "auto");
  ho_allocation* memory = nullptr;
  REQUIRE(ho_allocate(pool.get(), 1 << 20, &memory) == HO_OK);
  CHECK(nodes.granted_bytes(0) == 2097152);
  CHECK(nodes.granted_bytes(1) == 2097152);
  ho_free(pool.get(), memory);
}

TEST_CASE("client: an allocation is freed by its own pool alone") {
  TwoNodes nodes;
  const PoolHandle own = connect_pool(nodes.address(0), "auto");
  const PoolHandle other = connect_pool(nodes.address(0), "auto");
  ho_allocation* memory = nullptr;
  REQUIRE(ho_allocate(own.get(), 1 << 20, &memory) == HO_OK);
  ho_free(other.get(), memory);
  REQUIRE(nodes.granted_bytes(0) == 2097152);
  std::vector<std::byte> bytes = pattern(4096, 1);
  REQUIRE(ho_register(own.get(), bytes.data(), bytes.size()) == HO_OK);
  std::uint64_t ticket = 0;
  REQUIRE(ho_put(own.get(), memory, 0, bytes.data(), bytes.size(), &ticket) == HO_OK);
  CHECK(ho_wait(own.get(), ticket) == HO_OK);
  CHECK(ho_unregister(own.get(), bytes.data()) == HO_OK);
  ho_free(own.get(), memory);
  CHECK(nodes.granted_bytes(0) == 0);
}

TEST_CASE("client: a transfer with another pool's allocation is refused, and moves nothing") {
  TwoNodes nodes;
  const PoolHandle own = connect_pool(nodes.address(0), "local");
  const PoolHandle other = connect_pool(nodes.address(0), "tcp");
  std::vector<std::byte> bytes = pattern(4096, 1);
  std::vector<ho_allocation*> memory(2);
  std::uint64_t ticket = 0;
  for (std::size_t i = 0; i < 2; ++i) {
    ho_pool* const pool = i == 0 ? own.get() : other.get();
    REQUIRE(ho_allocate(pool, bytes.size(), &memory[i]) == HO_OK);
    REQUIRE(ho_register(pool, bytes.data(), bytes.size()) == HO_OK);
  }
  CHECK(ho_put(other.get(), memory[0], 0, bytes.data(), bytes.size(), &ticket) ==
        HO_INVALID_ARGUMENT);
  CHECK_THAT(ho_last_error(), Catch::Contains("another pool's"));
  CHECK(ho_get(other.get(), memory[0], 0, bytes.data(), bytes.size(), &ticket) ==
        HO_INVALID_ARGUMENT);
  CHECK(bytes == pattern(4096, 1));
  for (std::size_t i = 0; i < 2; ++i) {
    ho_pool* const pool = i == 0 ? own.get() : other.get();
    REQUIRE(ho_get(pool, memory[i], 0, bytes.data(), bytes.size(), &ticket) == HO_OK);
    CHECK(ho_wait(pool, ticket) == HO_OK);
    CHECK(bytes == std::vector<std::byte>(bytes.size()));
    CHECK(ho_unregister(pool, bytes.data()) == HO_OK);
    ho_free(pool, memory[i]);
  }
}

TEST_CASE("client: a pool's room is that of the nodes of a kind, and memory comes from them") {
  TwoNodes nodes;
  const auto room_of = [](ho_pool* pool, ho_nearness which) {
    ho_pool_room room{};
    room.struct_bytes = sizeof room;
    CHECK(ho_pool_get_room(pool, which, &room) == HO_OK);
    return room;
  };
  for (const auto& [transport, kind, other] :
       {std::tuple{"local", HO_NEAR_NODES, HO_FAR_NODES}, {"tcp", HO_FAR_NODES, HO_NEAR_NODES}}) {
    CAPTURE(transport);
    const PoolHandle pool = connect_pool(nodes.address(0), transport);
    const ho_pool_room before = room_of(pool.get(), kind);
    CHECK(before.nodes == 2);
    CHECK(before.failure_domains == 1);
    CHECK(before.ddr_bytes == 64 << 20);
    CHECK(before.flash_bytes == 0);
    CHECK(room_of(pool.get(), other).nodes == 0);
    ho_allocation* memory = nullptr;
    CHECK(ho_allocate_among(pool.get(), other, 1 << 20, &memory) == HO_NOT_FOUND);
    REQUIRE(ho_allocate_among(pool.get(), kind, 1 << 20, &memory) == HO_OK);
    CHECK(room_of(pool.get(), kind).ddr_bytes == 60 << 20);  // a segment of each node
    CHECK(room_of(pool.get(), HO_ALL_NODES).ddr_bytes == 60 << 20);
    ho_free(pool.get(), memory);
    ho_pool_room unset{};
    CHECK(ho_pool_get_room(pool.get(), kind, &unset) == HO_INVALID_ARGUMENT);
    CHECK(ho_pool_get_room(pool.get(), static_cast<ho_nearness>(3), &unset) == HO_INVALID_ARGUMENT);
  }
}

TEST_CASE("client: asking for more than there is names need, room and nodes") {
  TwoNodes nodes;
  const PoolHandle pool = connect_pool(nodes.address(0), "auto");
  ho_allocation* memory = nullptr;
  CHECK(ho_allocate(pool.get(), 1U << 30U, &memory) == HO_EXHAUSTED);
  const std::string text = ho_last_error();
  INFO(text);
  CHECK(text.find("needs 1.00 GiB, pool has 64.0 MiB on nodes") != std::string::npos);
  CHECK(text.find("n0") != std::string::npos);
  CHECK(text.find("n1") != std::string::npos);
  CHECK(nodes.granted_bytes(0) == 0);
}

TEST_CASE("client: a job does not wait for more than all of its nodes have, free or not") {
  TwoNodes nodes;
  const std::string address = nodes.address(0);
  ho_connect_options options{};
  options.struct_bytes = sizeof(options);
  options.pool = address.c_str();
  options.wait_ms = 60'000;
  ho_pool* connected = nullptr;
  REQUIRE(ho_connect(&options, &connected) == HO_OK);
  const PoolHandle pool(connected);
  ho_allocation* memory = nullptr;
  const auto began = std::chrono::steady_clock::now();
  CHECK(ho_allocate(pool.get(), 65U << 20U, &memory) == HO_EXHAUSTED);
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::milliseconds(options.wait_ms));
  CHECK_THAT(ho_last_error(), Catch::Contains("needs 65.0 MiB, pool has 64.0 MiB on nodes"));
  // What others give back is waited for.
  ho_allocation* most = nullptr;
  REQUIRE(ho_allocate(pool.get(), 60U << 20U, &most) == HO_OK);
  std::thread giver([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    ho_free(pool.get(), most);
  });
  CHECK(ho_allocate(pool.get(), 64U << 20U, &memory) == HO_OK);
  giver.join();
  ho_free(pool.get(), memory);
}

#ifndef HO_TEST_SANITIZED  // see FewFiles
TEST_CASE("client: a job at its limit of open files gets no more memory, and keeps what it has") {
  TwoNodes nodes({.nodes = 1});
  const PoolHandle pool = connect_pool(nodes.address(0), "auto");
  std::vector<std::byte> bytes = pattern(4096, 1);
  std::vector<std::byte> received(bytes.size());
  REQUIRE(ho_register(pool.get(), bytes.data(), bytes.size()) == HO_OK);
  REQUIRE(ho_register(pool.get(), received.data(), received.size()) == HO_OK);
  ho_allocation* memory = nullptr;
  REQUIRE(ho_allocate(pool.get(), bytes.size(), &memory) == HO_OK);
  std::uint64_t ticket = 0;
  REQUIRE(ho_put(pool.get(), memory, 0, bytes.data(), bytes.size(), &ticket) == HO_OK);
  REQUIRE(ho_wait(pool.get(), ticket) == HO_OK);
  const std::uint64_t granted = nodes.granted_bytes(0);
  ho_allocation* refused = nullptr;
  for (const int more : {0, 1, 2}) {
    const test::FewFiles few(more);
    CHECK(ho_allocate(pool.get(), 8U << 20U, &refused) == HO_EXHAUSTED);  // four segments
    CHECK_THAT(ho_last_error(), Catch::Contains("ulimit -n"));
  }
  CHECK(test::eventually(std::chrono::seconds(20),
                         [&] { return nodes.granted_bytes(0) == granted; }));
  REQUIRE(ho_get(pool.get(), memory, 0, received.data(), received.size(), &ticket) == HO_OK);
  CHECK(ho_wait(pool.get(), ticket) == HO_OK);
  CHECK(received == bytes);
  ho_free(pool.get(), memory);
  REQUIRE(ho_allocate(pool.get(), 8U << 20U, &memory) == HO_OK);
  ho_free(pool.get(), memory);
}
#endif

TEST_CASE("client: misuse is refused in words") {
  TwoNodes nodes;
  const PoolHandle pool = connect_pool(nodes.address(0), "auto");
  ho_allocation* memory = nullptr;
  REQUIRE(ho_allocate(pool.get(), 4096, &memory) == HO_OK);
  char bytes[64] = {};
  std::uint64_t ticket = 0;
  CHECK(ho_put(pool.get(), memory, 0, bytes, 64, &ticket) == HO_INVALID_ARGUMENT);
  CHECK(std::string(ho_last_error()).find("not registered") != std::string::npos);
  REQUIRE(ho_register(pool.get(), bytes, 64) == HO_OK);
  CHECK(ho_register(pool.get(), bytes + 8, 8) == HO_ALREADY_EXISTS);
  CHECK(ho_unregister(pool.get(), bytes) == HO_OK);
  for (const std::size_t wrong : {SIZE_MAX, SIZE_MAX / 2, (std::size_t{1} << 50U) + 1}) {
    CHECK(ho_register(pool.get(), bytes, wrong) == HO_INVALID_ARGUMENT);
    CHECK_THAT(ho_last_error(), Catch::Contains("more than 2^50"));
    ho_device_memory device{};
    device.struct_bytes = sizeof(device);
    device.arena = bytes;
    device.arena_bytes = wrong;
    ho_runtime* runtime = nullptr;
    CHECK(ho_open(pool.get(), &device, &runtime) == HO_INVALID_ARGUMENT);
    CHECK_THAT(ho_last_error(), Catch::Contains("more than 2^50"));
  }
  CHECK(ho_register(pool.get(), bytes, 0) == HO_INVALID_ARGUMENT);
  CHECK_THAT(ho_last_error(), Catch::Contains("0 bytes"));
  ho_flash* flash = nullptr;
  CHECK(ho_flash_allocate(pool.get(), 0, HO_FLASH_SCRATCH, &flash) == HO_INVALID_ARGUMENT);
  REQUIRE(ho_register(pool.get(), bytes, 64) == HO_OK);
  CHECK(ho_put(pool.get(), memory, 4090, bytes, 64, &ticket) == HO_OUT_OF_RANGE);
  CHECK(ho_put(pool.get(), memory, UINT64_MAX, bytes, 64, &ticket) == HO_OUT_OF_RANGE);
  CHECK(ho_wait(pool.get(), 1) == HO_INVALID_ARGUMENT);
  ho_free(pool.get(), memory);
  CHECK_THROWS_AS(hyperoffload::Pool({"unix:/nowhere.sock", "t", "auto", 0}), hyperoffload::Error);
  const std::string address = nodes.address(0);
  for (const std::string& name :
       {std::string(256, 'n'), std::string(5000, 'n'), std::string("\xff")}) {
    ho_connect_options options{};
    options.struct_bytes = sizeof options;
    options.pool = address.c_str();
    options.name = name.c_str();
    ho_pool* refused = nullptr;
    CHECK(ho_connect(&options, &refused) == HO_INVALID_ARGUMENT);
    CHECK(std::string(ho_last_error()).find("up to 255 bytes of UTF-8") != std::string::npos);
  }
  CHECK_THROWS_AS(hyperoffload::Pool({nodes.address(0), "t", "pigeon", 0}), hyperoffload::Error);
}

TEST_CASE("client: a struct without its size, or with half a field, is refused in these words") {
  TwoNodes nodes;
  const PoolHandle pool = connect_pool(nodes.address(0), "auto");
  const auto refused = [](ho_status status) {
    CHECK(status == HO_INVALID_ARGUMENT);
    CHECK_THAT(ho_last_error(), Catch::Contains("struct_bytes is not set"));
  };
  const std::string address = nodes.address(0);
  for (const std::size_t half : {0U, 12U}) {
    ho_connect_options options{};
    options.struct_bytes = half;
    options.pool = address.c_str();
    ho_pool* none = nullptr;
    refused(ho_connect(&options, &none));
    char arena[64] = {};
    ho_device_memory device{};
    device.struct_bytes = half;
    device.arena = arena;
    device.arena_bytes = sizeof(arena);
    ho_runtime* runtime = nullptr;
    refused(ho_open(pool.get(), &device, &runtime));
    ho_object_options object{};
    object.struct_bytes = half;
    object.name = "object";
    ho_publisher* publisher = nullptr;
    refused(ho_publisher_open(pool.get(), &object, nullptr, 0, &publisher));
    ho_blocks_options blocks{};
    blocks.struct_bytes = half;
    ho_blocks* store = nullptr;
    refused(ho_blocks_open(pool.get(), &blocks, &store));
    ho_pool_notice notice{};
    notice.struct_bytes = half;
    refused(ho_pool_get_notice(pool.get(), &notice));
  }
}

TEST_CASE("client: a planned run sees the model's bytes and leaves them at home") {
  TwoNodes nodes;
  for (const char* transport : {"auto", "tcp"}) {
    const PoolHandle pool = connect_pool(nodes.address(1), transport);
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
      INFO("transport " << transport << " seed " << seed);
      const schedule::Schedule schedule = some_schedule(seed);
      PlannedJob job(pool.get(), schedule, seed);
      INFO(job.error());
      REQUIRE(job.run(4) == HO_OK);
      REQUIRE(job.sync_and_compare() == HO_OK);
      CHECK(job.wrong() == "");
      ho_counters counters{};
      counters.struct_bytes = sizeof(counters);
      REQUIRE(ho_get_counters(job.plan(), &counters) == HO_OK);
      std::uint64_t prefetched = 0;
      for (const auto& op : schedule.cache_ops) {
        if (op.kind == schedule::CacheOpKind::kPrefetch) prefetched += op.range_end_bytes;
      }
      CHECK(counters.steps == 4);
      counters.struct_bytes = 0;
      CHECK(ho_get_counters(job.plan(), &counters) == HO_INVALID_ARGUMENT);
      CHECK(counters.prefetch_bytes == 4 * prefetched);
      CHECK(counters.peak_device_bytes <= schedule.arena_bytes);
      std::vector<ho_span> ops(ho_position_count(job.plan()));
      std::vector<ho_span> moves(ho_cache_op_count(job.plan()));
      REQUIRE(ho_get_timeline(job.plan(), ops.data(), moves.data()) == HO_OK);
      for (std::size_t i = 0; i < ops.size(); ++i) {
        CHECK(ops[i].start_ns <= ops[i].end_ns);
        if (i > 0) CHECK(ops[i - 1].end_ns <= ops[i].start_ns);
      }
      for (std::size_t i = 0; i < moves.size(); ++i) CHECK(moves[i].start_ns <= moves[i].end_ns);
    }
  }
}

TEST_CASE("client: an analyzed plan with an epilogue runs and reads back as it was made") {
  TwoNodes nodes({.ddr_bytes = 256U << 20U});
  const Graph graph = test::transformer(3, 4);
  const auto outcome = analyzer::analyze(graph, test::one_tier(4'000'000'000, 5000),
                                         {analyzer::peak_unmanaged_bytes(graph) * 6 / 10, 64});
  REQUIRE(outcome.ok());
  REQUIRE(std::holds_alternative<schedule::Schedule>(*outcome));
  const auto& plan = std::get<schedule::Schedule>(*outcome);
  REQUIRE_FALSE(plan.prologue.empty());
  REQUIRE_FALSE(plan.epilogue.empty());
  for (const char* transport : {"local", "tcp"}) {
    const PoolHandle pool = connect_pool(nodes.address(0), transport);
    PlannedJob job(pool.get(), plan, 11);
    INFO(transport << ": " << job.error());
    REQUIRE(job.run(3) == HO_OK);
    REQUIRE(job.sync_and_compare() == HO_OK);
    CHECK(job.wrong() == "");
  }
}

TEST_CASE("client: calls out of order are conflicts with words") {
  TwoNodes nodes;
  const PoolHandle pool = connect_pool(nodes.address(0), "auto");
  const schedule::Schedule schedule = some_schedule(3);
  PlannedJob job(pool.get(), schedule, 3);
  ho_plan* const run = job.plan();
  REQUIRE(run != nullptr);
  CHECK(ho_before(run, 0) == HO_CONFLICT);
  CHECK(ho_after(run, 0) == HO_CONFLICT);
  CHECK(ho_step_end(run) == HO_CONFLICT);
  REQUIRE(job.run(1) == HO_OK);
  CHECK(ho_before(run, 1) == HO_CONFLICT);
  CHECK(std::string(ho_last_error()).find("none of this plan's steps runs") != std::string::npos);
  char byte = 0;
  CHECK(ho_write(run, 424242, &byte, 1) == HO_NOT_FOUND);
  CHECK(ho_read(run, schedule.storages[0].id, &byte, 1) != HO_OK);
  CHECK(ho_operand(run, 0, 424242) == nullptr);
  CHECK(ho_operand(run, 100000, schedule.storages[0].id) == nullptr);
  // What callbacks alone have.
  CHECK(ho_undeclare(job.runtime(), 0) == HO_UNSUPPORTED);
  CHECK(ho_peek(job.runtime(), 0, &byte, 1) == HO_UNSUPPORTED);
  // Beyond the last position, with the next step's first ready and not.
  for (int step = 0; step < 2; ++step) {
    REQUIRE(job.begin_step() == HO_OK);
    const std::uint32_t count = ho_position_count(run);
    for (std::uint32_t p = 0; p < count; ++p) {
      const auto& operands = schedule.positions[p].operands;
      const auto operand = [&] {
        if (operands.empty()) return static_cast<void*>(nullptr);
        return ho_operand(run, p, schedule.storages[operands[0].storage.value()].id);
      };
      CHECK(operand() == nullptr);
      REQUIRE(ho_before(run, p) == HO_OK);
      CHECK((operand() != nullptr) == !operands.empty());
      REQUIRE(ho_after(run, p) == HO_OK);
      CHECK(operand() == nullptr);
    }
    CHECK(ho_before(run, count) == HO_CONFLICT);
    CHECK(std::string(ho_last_error()).find("out of order") != std::string::npos);
    CHECK(ho_after(run, count) == HO_CONFLICT);
    CHECK(ho_step_end(run) == HO_OK);
  }
}

TEST_CASE("client: a schedule that is damaged or illegal is refused with the reason") {
  TwoNodes nodes;
  const PoolHandle pool = connect_pool(nodes.address(0), "auto");
  const schedule::Schedule good = some_schedule(5);
  const std::string bytes = encode_schedule(good);
  std::vector<char> arena(good.arena_bytes + 64);
  char* const aligned = arena.data() + (64 - reinterpret_cast<std::uintptr_t>(arena.data()) % 64);
  const auto load = [&](const std::string& encoded, char* memory, std::size_t room) {
    ho_device_memory device{};
    device.struct_bytes = sizeof(device);
    device.arena = memory;
    device.arena_bytes = room;
    ho_runtime* runtime = nullptr;
    REQUIRE(ho_open(pool.get(), &device, &runtime) == HO_OK);
    ho_plan* plan = nullptr;
    const ho_status status = ho_load(runtime, encoded.data(), encoded.size(), &plan);
    CHECK((plan == nullptr) == (status != HO_OK));
    ho_close(runtime);
    return status;
  };
  std::string damaged = bytes;
  damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 1);
  CHECK(load(damaged, aligned, good.arena_bytes) == HO_CORRUPT);
  schedule::Schedule illegal = good;
  REQUIRE_FALSE(illegal.positions[0].operands.empty());
  illegal.positions[0].operands[0].device_offset_bytes = illegal.arena_bytes;
  CHECK(load(encode_schedule(illegal), aligned, good.arena_bytes) == HO_INVALID_ARGUMENT);
  CHECK(std::string(ho_last_error()).find("illegal schedule") != std::string::npos);
  CHECK(load(bytes, aligned, good.arena_bytes - 1) == HO_INVALID_ARGUMENT);
  CHECK(load(bytes, aligned + 1, good.arena_bytes) == HO_INVALID_ARGUMENT);
  CHECK(load(bytes, aligned, good.arena_bytes) == HO_OK);
}

TEST_CASE("client: two equal jobs on one pool do not disturb each other") {
  TwoNodes nodes;
  const schedule::Schedule schedule = some_schedule(7);
  std::string wrong[2];
  ho_status status[2] = {HO_IO, HO_IO};
  // Catch works on the main thread only, so the threads keep outcomes and the main thread checks
  // them.
  const PoolHandle pools[2] = {connect_pool(nodes.address(0), "auto"),
                               connect_pool(nodes.address(0), "tcp")};
  const auto work = [&](int i) {
    PlannedJob job(pools[i].get(), schedule, static_cast<std::uint64_t>(100 + i));
    status[i] = job.run(30);
    if (status[i] == HO_OK) status[i] = job.sync_and_compare();
    wrong[i] = job.wrong() + job.error();
  };
  std::thread other([&] { work(1); });
  work(0);
  other.join();
  for (int i : {0, 1}) {
    CHECK(status[i] == HO_OK);
    CHECK(wrong[i] == "");
  }
}
