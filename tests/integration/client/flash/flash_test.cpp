#include <hyperoffload/hyperoffload.h>
#include <hyperoffload/hyperoffload.hpp>

#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/client/flash/flash_plans.hpp"
#include "tests/integration/client/steps/planned_job.hpp"
#include "tests/integration/client/two_nodes.hpp"
#include "tests/integration/flash/staging_client.hpp"
#include "tests/support/patience.hpp"
#include "tests/support/skip.hpp"
#include "tests/support/staged_schedule.hpp"

namespace {

using namespace ho;
using test::connect_pool;
using test::PlannedJob;
using test::plans_with_flash;
using test::PoolHandle;
using test::TwoNodes;

constexpr test::PoolSpec kPool{32U << 20U, 500, false, 16U << 20U};

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

/// An allocation of durable flash, with its host memory.
struct Staged {
  Staged(ho_pool* the_pool, ho_flash* the_flash) : pool(the_pool), flash(the_flash) {
    REQUIRE(ho_allocate_beside(pool, flash, 4 * kMiB, &memory) == HO_OK);
    REQUIRE(ho_register(pool, host.data(), host.size()) == HO_OK);
  }
  ~Staged() {
    (void)ho_unregister(pool, host.data());
    ho_free(pool, memory);
    ho_flash_close(flash);
  }
  ho_status wait(ho_status started, std::uint64_t ticket) {
    return started == HO_OK ? ho_wait(pool, ticket) : started;
  }
  ho_status out() {
    std::uint64_t ticket = 0;
    auto status = ho_put(pool, memory, 64, host.data(), host.size(), &ticket);
    if (wait(status, ticket) != HO_OK) return HO_IO;
    status = ho_stage_out(pool, flash, 0, memory, 64, host.size(), &ticket);
    return wait(status, ticket);
  }
  ho_status in() {
    std::uint64_t ticket = 0;
    auto status = ho_stage_in(pool, flash, 0, memory, 64, host.size(), &ticket);
    if (status = wait(status, ticket); status != HO_OK) return status;
    status = ho_get(pool, memory, 64, host.data(), host.size(), &ticket);
    return wait(status, ticket);
  }
  ho_pool* pool;
  ho_flash* flash;
  ho_allocation* memory = nullptr;
  std::vector<std::byte> host = std::vector<std::byte>(3 * kMiB + 5);
};

}  // namespace

TEST_CASE("client flash: plans with homes on flash move the right bytes with real daemons") {
  SKIP_WITHOUT_FLASH();
  const std::array<std::vector<schedule::Schedule>, 2> small_and_large{plans_with_flash(4, 1),
                                                                       plans_with_flash(4, 50)};
  for (const char* transport : {"auto", "tcp"}) {
    TwoNodes nodes(kPool);
    const PoolHandle pool = connect_pool(nodes.address(0), transport);
    std::uint64_t seed = 1;
    for (const auto& plans : small_and_large) {
      for (const auto& schedule : plans) {
        PlannedJob job(pool.get(), schedule, seed++);
        INFO("seed " << seed << " over " << transport << ": " << job.error());
        REQUIRE(job.plan() != nullptr);
        CHECK(job.run(4) == HO_OK);
        CHECK(job.error() == "");
        ho_counters counters{};
        counters.struct_bytes = sizeof(counters);
        REQUIRE(ho_get_counters(job.plan(), &counters) == HO_OK);
        // A StageIn for the next step may have ended before the last step began.
        CHECK(counters.stage_in_bytes > 0);
        CHECK(counters.stage_in_bytes >= counters.last_step_stage_in_bytes);
        CHECK(counters.last_step_stage_in_bytes <= schedule.prediction.stage_in_bytes * 4);
        std::vector<ho_span> spans(ho_cache_op_count(job.plan()));
        REQUIRE(ho_get_timeline(job.plan(), nullptr, spans.data()) == HO_OK);
        for (std::size_t i = 0; i < spans.size(); ++i) {
          const auto kind = schedule.cache_ops[i].kind;
          if (kind != schedule::CacheOpKind::kStageIn) continue;
          CHECK(spans[i].bytes == schedule.cache_ops[i].range_end_bytes);
          CHECK(spans[i].end_ns >= spans[i].start_ns);
        }
        Prng random(seed);
        for (int i = 0; i < 4; ++i) {
          CHECK(job.write_some(random) == HO_OK);
          CHECK(job.compare_some(random) == HO_OK);
          CHECK(job.run(1) == HO_OK);
        }
        CHECK(job.sync_and_compare() == HO_OK);
        CHECK(job.wrong() == "");
      }
    }
  }
}

TEST_CASE("client flash: a persistent storage that was never written is zeros before a step, too") {
  SKIP_WITHOUT_FLASH();
  TwoNodes nodes(kPool);
  const PoolHandle pool = connect_pool(nodes.address(0), "auto");
  using Device = PlannedJob::Device;
  for (const auto& schedule : plans_with_flash(4, 1)) {
    for (const Device device : {Device::kArena, Device::kHosted}) {
      PlannedJob job(pool.get(), schedule, 7, device);
      REQUIRE(job.plan() != nullptr);
      for (const Storage& storage : schedule.storages) {
        if (!storage.persistent) continue;
        INFO(storage.name);
        const std::vector<std::byte> zeros(storage.bytes);
        ho_storage number = 0;
        void* there = nullptr;
        REQUIRE(ho_storage_of(job.plan(), storage.id, &number) == HO_OK);
        if (device == Device::kHosted) {
          REQUIRE(ho_fetch(job.runtime(), number, &there) == HO_OK);
          CHECK(std::memcmp(there, zeros.data(), zeros.size()) == 0);
        }
        std::vector<std::byte> value(storage.bytes, std::byte{1});
        REQUIRE(ho_read(job.plan(), storage.id, value.data(), value.size()) == HO_OK);
        CHECK(value == zeros);
      }
      CHECK(job.run(2) == HO_OK);
      CHECK(job.sync_and_compare() == HO_OK);
    }
  }
}

TEST_CASE(
    "client flash: a job that a drained node keeps out hears of that node, not \"no flash\"") {
  SKIP_WITHOUT_FLASH();
  TwoNodes nodes({.flash_bytes = 16U << 20U, .flash_from = 1});
  ho_flash* flash = nullptr;
  {
    TwoNodes none;
    const PoolHandle pool = connect_pool(none.address(0), "auto");
    CHECK(ho_flash_allocate(pool.get(), 4096, HO_FLASH_SCRATCH, &flash) == HO_UNSUPPORTED);
  }
  REQUIRE(test::connect(nodes.address(1))->drain(test::soon()).ok());
  const PoolHandle pool = connect_pool(nodes.address(0), "auto");
  CHECK(ho_flash_allocate(pool.get(), 4096, HO_FLASH_SCRATCH, &flash) == HO_UNAVAILABLE);
  CHECK_THAT(ho_last_error(), Catch::Contains("n1 is drained: it gives nothing out until undrain"));
  const auto schedule = plans_with_flash(1, 1).front();
  const PlannedJob job(pool.get(), schedule, 1);
  CHECK(job.plan() == nullptr);
  CHECK_THAT(job.error(), Catch::Contains("n1 is drained"));
}

TEST_CASE("client flash: a get begins before the last chunk was staged in, a stage out likewise") {
  SKIP_WITHOUT_FLASH();
  TwoNodes nodes(kPool);
  const PoolHandle pool = connect_pool(nodes.address(0), "auto");
  const auto schedule = test::staged_schedule(12 * kMiB);
  PlannedJob job(pool.get(), schedule, 5);
  INFO(job.error());
  REQUIRE(job.plan() != nullptr);
  // In one of many steps: a thread that is suspended at the wrong moment sees all chunks arrive at
  // once.
  bool early = false;
  for (int step = 0; step < 3 || (step < 30 && !early); ++step) {
    REQUIRE(job.run(1) == HO_OK);
    REQUIRE(job.wrong() == "");
    std::vector<ho_span> spans(ho_cache_op_count(job.plan()));
    REQUIRE(spans.size() == schedule.cache_ops.size());
    REQUIRE(ho_get_timeline(job.plan(), nullptr, spans.data()) == HO_OK);
    using Ops = test::StagedOps;
    early = early || spans[Ops::kPrefetch].start_ns < spans[Ops::kStageIn].end_ns;
    CHECK(spans[Ops::kStageOut].start_ns < spans[Ops::kStore].end_ns);
    CHECK(spans[Ops::kStageIn].start_ns >= spans[Ops::kStageOut].end_ns);
  }
  CHECK(early);
  CHECK(job.sync_and_compare() == HO_OK);
}

TEST_CASE("client flash: a pool without flash refuses such a plan with the reason") {
  TwoNodes nodes;
  const PoolHandle pool = connect_pool(nodes.address(0), "auto");
  const auto plans = plans_with_flash(1, 1);
  PlannedJob job(pool.get(), plans.front(), 1);
  CHECK(job.plan() == nullptr);
  CHECK(job.error().find("no node of the pool has flash") != std::string::npos);
}

TEST_CASE("client flash: durable bytes are there for a later job, also after a kill") {
  SKIP_WITHOUT_FLASH();
  TwoNodes nodes(kPool);
  std::array<char, HO_FLASH_NAME_BYTES> name{};
  {
    const PoolHandle pool = connect_pool(nodes.address(0), "auto");
    ho_flash* flash = nullptr;
    REQUIRE(ho_flash_allocate(pool.get(), 4 * kMiB, HO_FLASH_DURABLE, &flash) == HO_OK);
    Staged staged(pool.get(), flash);
    CHECK(staged.in() == HO_NOT_FOUND);
    test::fill(staged.host, 7);
    REQUIRE(staged.out() == HO_OK);
    REQUIRE(ho_flash_name(pool.get(), flash, name.data(), name.size()) == HO_OK);
    CHECK(ho_flash_name(pool.get(), flash, name.data(), 3) == HO_OUT_OF_RANGE);
    REQUIRE(ho_flash_name(pool.get(), flash, name.data(), name.size()) == HO_OK);
  }
  const int node = name[0] == '0' ? 0 : 1;
  nodes.daemon(node).send(SIGKILL);
  CHECK(nodes.daemon(node).wait().signal == SIGKILL);
  nodes.restart(node);
  const PoolHandle pool = connect_pool(nodes.address(1 - node), "auto");
  ho_flash* flash = nullptr;
  CHECK(ho_flash_open(pool.get(), "0:1:2", &flash) == HO_NOT_FOUND);
  CHECK(ho_flash_open(pool.get(), "zebra", &flash) == HO_INVALID_ARGUMENT);
  REQUIRE(ho_flash_open(pool.get(), name.data(), &flash) == HO_OK);
  CHECK(ho_flash_bytes(flash) == 4 * kMiB);
  {
    Staged staged(pool.get(), flash);
    REQUIRE(staged.in() == HO_OK);
    CHECK(test::filled(staged.host, 7));
    std::uint64_t ticket = 0;
    CHECK(ho_stage_in(pool.get(), flash, 4 * kMiB, staged.memory, 0, 1, &ticket) ==
          HO_OUT_OF_RANGE);
    CHECK(ho_stage_in(pool.get(), flash, 0, staged.memory, 4 * kMiB - 1, 2, &ticket) ==
          HO_OUT_OF_RANGE);
  }
  REQUIRE(ho_flash_open(pool.get(), name.data(), &flash) == HO_OK);
  REQUIRE(ho_flash_free(pool.get(), flash) == HO_OK);
  CHECK(ho_flash_open(pool.get(), name.data(), &flash) == HO_NOT_FOUND);
}

TEST_CASE("client flash: a killed daemon fails the job within 2 s, naming node and tensors",
          "[time]") {
  SKIP_WITHOUT_FLASH();
  TwoNodes nodes(kPool);
  const PoolHandle pool = connect_pool(nodes.address(0), "auto");
  const auto plans = plans_with_flash(1, 50);
  PlannedJob job(pool.get(), plans.front(), 3);
  REQUIRE(job.plan() != nullptr);
  REQUIRE(job.run(1) == HO_OK);
  std::thread killer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ::kill(nodes.daemon(0).pid(), SIGKILL);
    ::kill(nodes.daemon(1).pid(), SIGKILL);
  });
  ho_status status = HO_OK;
  const auto began = std::chrono::steady_clock::now();
  while (status == HO_OK && std::chrono::steady_clock::now() - began < std::chrono::seconds(60)) {
    status = job.run(1);
  }
  const auto took = std::chrono::steady_clock::now() - began;
  killer.join();
  CHECK(status == HO_UNAVAILABLE);
  CHECK(took < test::within(std::chrono::milliseconds(2020)));
  CHECK(job.wrong() == "");
  INFO(job.error());
  CHECK(job.error().find("node ") != std::string::npos);
  CHECK(job.error().find("tensors at home there: ") != std::string::npos);
}

TEST_CASE("client flash: a flipped bit fails the job as the daemon describes it") {
  SKIP_WITHOUT_FLASH();
  TwoNodes nodes(kPool);
  const PoolHandle pool = connect_pool(nodes.address(0), "auto");
  ho_flash* flash = nullptr;
  REQUIRE(ho_flash_allocate(pool.get(), 4 * kMiB, HO_FLASH_SCRATCH, &flash) == HO_OK);
  Staged staged(pool.get(), flash);
  test::fill(staged.host, 11);
  REQUIRE(staged.out() == HO_OK);
  const std::string marker(reinterpret_cast<const char*>(staged.host.data()) + 8192, 64);
  for (const int node : {0, 1}) {
    std::fstream file(nodes.flash_path(node), std::ios::in | std::ios::out | std::ios::binary);
    const std::string device{std::istreambuf_iterator<char>(file), {}};
    const std::size_t at = device.find(marker);
    if (at == std::string::npos) continue;
    file.clear();
    file.seekp(static_cast<std::streamoff>(at));
    file.put(static_cast<char>(marker[0] ^ 1));
  }
  CHECK(staged.in() == HO_CORRUPT);
  const std::string said = ho_last_error();
  INFO(said);
  CHECK(said.find("flash") != std::string::npos);
  CHECK(said.find("block 2") != std::string::npos);
}

TEST_CASE("client flash: the C++ owners free scratch flash and keep durable flash") {
  SKIP_WITHOUT_FLASH();
  TwoNodes nodes(kPool);
  std::vector<std::byte> host(kMiB);
  std::string name;
  const auto extents = [&] {
    std::size_t count = 0;
    for (const int node : {0, 1}) {
      const auto listed = test::connect(nodes.address(node))->flash_extents(test::soon());
      REQUIRE(listed.ok());
      count += listed->size();
    }
    return count;
  };
  {
    hyperoffload::Pool pool({nodes.address(0), "cpp", "auto", 0});
    {
      hyperoffload::Flash scratch = pool.allocate_flash(kMiB, HO_FLASH_SCRATCH);
      hyperoffload::Flash durable = pool.allocate_flash(kMiB, HO_FLASH_DURABLE);
      hyperoffload::Flash moved(std::move(durable));
      CHECK(moved.bytes() == kMiB);
      hyperoffload::Allocation memory = pool.allocate_beside(moved, kMiB);
      test::fill(host, 3);
      pool.register_memory(host.data(), host.size());
      pool.wait(pool.put(memory, 0, host.data(), host.size()));
      pool.wait(pool.stage_out(moved, 0, memory, 0, host.size()));
      name = moved.name();
      CHECK(extents() == 2);
      pool.unregister_memory(host.data());
    }
    CHECK(extents() == 1);
    CHECK_THROWS_AS(pool.open_flash("zebra"), hyperoffload::Error);
  }
  hyperoffload::Pool pool({nodes.address(1), "cpp", "auto", 0});
  hyperoffload::Flash flash = pool.open_flash(name);
  hyperoffload::Allocation memory = pool.allocate_beside(flash, kMiB);
  std::fill(host.begin(), host.end(), std::byte{});
  pool.register_memory(host.data(), host.size());
  pool.wait(pool.stage_in(flash, 0, memory, 0, host.size()));
  pool.wait(pool.get(memory, 0, host.data(), host.size()));
  pool.unregister_memory(host.data());
  CHECK(test::filled(host, 3));
  flash.free();
  CHECK(extents() == 0);
}

TEST_CASE("client flash: another pool's flash and memory are refused") {
  SKIP_WITHOUT_FLASH();
  const TwoNodes nodes({.flash_bytes = 16U << 20U, .nodes = 1});
  const PoolHandle own = connect_pool(nodes.address(0), "local");
  const PoolHandle other = connect_pool(nodes.address(0), "local");
  ho_flash* flash = nullptr;
  REQUIRE(ho_flash_allocate(own.get(), kMiB, HO_FLASH_DURABLE, &flash) == HO_OK);
  ho_flash* others = nullptr;
  REQUIRE(ho_flash_allocate(other.get(), kMiB, HO_FLASH_SCRATCH, &others) == HO_OK);
  ho_allocation* memory = nullptr;
  REQUIRE(ho_allocate_beside(own.get(), flash, kMiB, &memory) == HO_OK);
  const auto refused = [](ho_status status, const char* what) {
    CHECK(status == HO_INVALID_ARGUMENT);
    CHECK_THAT(ho_last_error(), Catch::Contains(std::string(what) + " is another pool's"));
  };
  std::uint64_t ticket = 0;
  refused(ho_stage_out(other.get(), flash, 0, memory, 0, kMiB, &ticket), "the flash");
  refused(ho_stage_out(other.get(), others, 0, memory, 0, kMiB, &ticket), "the allocation");
  refused(ho_stage_in(own.get(), others, 0, memory, 0, kMiB, &ticket), "the flash");
  ho_allocation* beside = nullptr;
  refused(ho_allocate_beside(other.get(), flash, kMiB, &beside), "the flash");
  std::array<char, HO_FLASH_NAME_BYTES> name{};
  refused(ho_flash_name(other.get(), flash, name.data(), name.size()), "the flash");
  refused(ho_flash_free(other.get(), flash), "the flash");
  ho_free(own.get(), memory);
  CHECK(ho_flash_free(own.get(), flash) == HO_OK);
  CHECK(ho_flash_free(other.get(), others) == HO_OK);
}
