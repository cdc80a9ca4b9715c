#include <hyperoffload/hyperoffload.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <hyperoffload/hyperoffload.hpp>
#include <thread>
#include <vector>

#include "common/base/prng.hpp"
#include "common/base/units.hpp"
#include "tests/integration/client/steps/job_acts.hpp"
#include "tests/integration/client/steps/planned_job.hpp"
#include "tests/integration/client/two_nodes.hpp"
#include "tests/sim/job/random_schedule.hpp"

namespace {

using namespace ho;
using test::connect_pool;
using test::PlannedJob;
using test::PoolHandle;
using test::TwoNodes;

TEST_CASE("plans: what moves between steps counts for the next one") {
  TwoNodes nodes({.lease_ms = 10'000});
  const PoolHandle pool = connect_pool(nodes.address(0), "tcp");
  std::uint64_t between = 0;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    INFO("seed " << seed);
    Prng random(seed);
    PlannedJob job(pool.get(), test::random_schedule(random), seed);
    REQUIRE(job.error() == "");
    std::uint64_t moved = 0;
    std::uint64_t seen = 0;
    for (int step = 0; step < 6; ++step) {
      REQUIRE(job.run(1) == HO_OK);
      ho_counters at_end{};
      at_end.struct_bytes = sizeof(at_end);
      REQUIRE(ho_get_counters(job.plan(), &at_end) == HO_OK);
      moved += at_end.last_step_prefetch_bytes + at_end.last_step_store_bytes;
      REQUIRE(moved >= seen);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      ho_counters later = at_end;
      REQUIRE(ho_get_counters(job.plan(), &later) == HO_OK);
      seen = later.prefetch_bytes + later.store_bytes;
      between += seen - moved;
    }
  }
  CHECK(between > 0);
}

TEST_CASE("plans: values that are read and written between steps pass the job's own transfers") {
  TwoNodes nodes({.ddr_bytes = 64U << 20U, .lease_ms = 10'000});
  for (const char* transport : {"local", "tcp"}) {
    INFO("over " << transport);
    hyperoffload::Pool::Options options;
    options.pool = nodes.address(0);
    options.transport = transport;
    options.link_bytes_per_s = 20'000'000;
    hyperoffload::Pool pool(options);
    std::vector<std::byte> memory(kMiB);
    pool.register_memory(memory.data(), memory.size());
    const auto allocation = pool.allocate(kMiB);
    std::vector<std::uint64_t> tickets;
    for (int i = 0; i < 100; ++i) {
      tickets.push_back(pool.get(allocation, 0, memory.data(), memory.size()));
    }
    // It writes the first values. Small ones would have a queue of their own.
    PlannedJob job(pool.get(), test::passing(), 1);
    REQUIRE(job.error() == "");
    REQUIRE(job.sync_and_compare() == HO_OK);
    CHECK_FALSE(pool.test(tickets.back()));
    for (const std::uint64_t ticket : tickets) pool.wait(ticket);
  }
}

}  // namespace
