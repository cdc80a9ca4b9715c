// Cuts the link to another machine and restores it: the cases of link_test.cpp for the driver of
// RDMA devices, which network namespaces do not have. HO_FAR_POOL is the address of a daemon there,
// and HO_FAR_LINK the path of FarLink's file, which both machines see. tools/lab/suite sets this
// up.
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <future>
#include <iostream>
#include <memory>
#include <string>
#include <thread>

#include "tests/integration/client/two_nodes.hpp"
#include "tests/integration/faults/caller.hpp"
#include "tests/integration/faults/far_link.hpp"
#include "tests/integration/faults/job.hpp"
#include "tests/support/skip.hpp"

namespace ho::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

/// The bound that the project promises.
constexpr auto kToldMax = 5000ms;
/// From the link's return until a new job has the memory: an emulated machine is slow.
constexpr auto kAgainMax = 20s;

milliseconds since(Instant instant) {
  return std::chrono::duration_cast<milliseconds>(Clock::now() - instant);
}

/// Starts a job as soon as the pool accepts one.
std::unique_ptr<Job> new_job(const std::string& pool, const char* driver) {
  std::string why;
  const bool there = eventually(
      kAgainMax, [&] { return PoolHandle(try_connect(pool, driver, 0, why)) != nullptr; });
  INFO(why);
  REQUIRE(there);
  return std::make_unique<Job>(pool, driver, 0);
}

TEST_CASE("faults: a link to another machine that is cut is an error within 5 s, and works again") {
  const char* const pool = std::getenv("HO_FAR_POOL");
  const char* const file = std::getenv("HO_FAR_LINK");
  const char* const driver = std::getenv("HO_TRANSPORT");
  if (pool == nullptr || file == nullptr || driver == nullptr) {
    return skip("needs another machine: HO_FAR_POOL, HO_FAR_LINK and HO_TRANSPORT");
  }
  FarLink link(file);
  for (const Way way : {Way::kGet, Way::kPut}) {
    for (const Load load : {Load::kIdle, Load::kBusy}) {
      INFO(name_of(way) << ", " << name_of(load));
      auto job = new_job(pool, driver);
      auto told = std::async(std::launch::async,
                             [&] { return job->caller().go_on(way, load, Clock::now() + 60s); });
      std::this_thread::sleep_for(500ms);
      const Instant asked = Clock::now();
      link.set("down");
      const Told what = told.get();
      INFO(ho_status_name(what.status) << ": " << what.error);
      CHECK((what.status == HO_DEADLINE || what.status == HO_UNAVAILABLE));
      CHECK(what.at - asked < kToldMax);
      // Nothing may write to the memory any more, even once the old transfers could arrive.
      job->caller().take_back();
      const Instant again = Clock::now();
      link.set("up");
      std::this_thread::sleep_for(1s);
      CHECK(job->caller().untouched());
      CHECK(job->caller().single(way).status == HO_UNAVAILABLE);
      job.reset();
      job = new_job(pool, driver);
      CHECK(job->caller().right());
      std::cout << driver << ", " << name_of(way) << ", " << name_of(load) << ": "
                << ho_status_name(what.status) << " after "
                << std::chrono::duration_cast<milliseconds>(what.at - asked).count()
                << " ms; used again " << since(again).count() << " ms after the link's return\n";
    }
  }
}

}  // namespace
}  // namespace ho::test
