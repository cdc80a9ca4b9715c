// Two links with an RDMA device each to another machine, and one of them is cut: what the driver
// `ucx` does not do by itself, and what a job can do. HO_FAR_POOL and HO_FAR_LINK as in
// far_link_test.cpp, but the pool is reached over the link that stays, and the file cuts the other
// one. tools/lab/suite makes all this.
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

constexpr const char* kFirstDevice = "rxe0:1";   ///< of the link that is cut
constexpr const char* kSecondDevice = "rxe1:1";  ///< of the one that stays
constexpr auto kToldMax = 5000ms;
/// An emulated machine may not connect within the time that a job gives it.
constexpr auto kConnectMax = 30s;

std::unique_ptr<Job> new_job(const std::string& pool, const char* devices) {
  std::string why;
  const bool there = eventually(kConnectMax, [&] {
    return PoolHandle(try_connect(pool, "ucx", 0, why, devices)) != nullptr;
  });
  INFO(devices << ": " << why);
  REQUIRE(there);
  return std::make_unique<Job>(pool, "ucx", 0, 1, devices);
}

TEST_CASE("faults: of two RDMA links one is cut: its jobs are told, others and new ones go on") {
  const char* const pool = std::getenv("HO_FAR_POOL");
  const char* const file = std::getenv("HO_FAR_LINK");
  if (pool == nullptr || file == nullptr) {
    return skip("needs another machine: HO_FAR_POOL and HO_FAR_LINK");
  }
  FarLink link(file);
  for (const Way way : {Way::kGet, Way::kPut}) {
    INFO(name_of(way));
    const auto other = new_job(pool, kSecondDevice);
    auto job = new_job(pool, kFirstDevice);
    auto told = std::async(std::launch::async, [&] {
      return job->caller().go_on(way, Load::kBusy, Clock::now() + 60s);
    });
    std::this_thread::sleep_for(500ms);
    link.set("down");
    const Instant cut = Clock::now();
    const Told what = told.get();
    INFO(ho_status_name(what.status) << ": " << what.error);
    CHECK((what.status == HO_DEADLINE || what.status == HO_UNAVAILABLE));
    CHECK(what.at - cut < kToldMax);
    job->caller().take_back();
    // The link is cut still. Who is on the other one has noticed nothing, and there is room.
    CHECK(other->caller().right());
    CHECK(job->caller().untouched());
    job.reset();
    const Instant again = Clock::now();
    job = new_job(pool, kSecondDevice);
    CHECK(job->caller().right());
    std::cout << name_of(way) << ": " << ho_status_name(what.status) << " after "
              << std::chrono::duration_cast<milliseconds>(what.at - cut).count()
              << " ms; begun anew on the other link after "
              << std::chrono::duration_cast<milliseconds>(Clock::now() - again).count() << " ms\n";
    // The limit that the driver's README tells of: with all devices UCX takes the first, and does
    // not know that its link is silent.
    std::string why;
    CHECK(PoolHandle(try_connect(pool, "ucx", 0, why)) == nullptr);
    link.set("up");
  }
}

}  // namespace
}  // namespace ho::test
