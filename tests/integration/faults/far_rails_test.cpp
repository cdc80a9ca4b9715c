// Two links, each with an RDMA device, to another machine; one of them is cut under the driver
// `ucx`. HO_FAR_POOL and HO_FAR_LINK as in far_link_test.cpp, but the pool is reached over the link
// that stays up, and the file cuts the other one. tools/lab/suite sets this up.
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
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

constexpr const char* kFirstDevice = "rxe0:1";   ///< on the link that is cut
constexpr const char* kSecondDevice = "rxe1:1";  ///< on the link that stays up
constexpr const char* kAllDevices = "";
constexpr auto kToldMax = 5000ms;
/// An emulated machine may not connect within the time limit of a job.
constexpr auto kConnectMax = 30s;
/// The client tries a lost rail again and again, in the end after a minute.
constexpr auto kBackMax = 90s;

/// The pool and the link to cut. Skips the case if they are not given.
struct Far {
  const char* pool = std::getenv("HO_FAR_POOL");
  const char* file = std::getenv("HO_FAR_LINK");
  [[nodiscard]] bool there() const {
    if (pool != nullptr && file != nullptr) return true;
    skip("needs another machine: HO_FAR_POOL and HO_FAR_LINK");
    return false;
  }
};

std::unique_ptr<Job> new_job(const std::string& pool, const char* devices) {
  std::string why;
  const bool there = eventually(kConnectMax, [&] {
    return PoolHandle(try_connect(pool, "ucx", 0, why, devices)) != nullptr;
  });
  INFO(devices << ": " << why);
  REQUIRE(there);
  return std::make_unique<Job>(pool, "ucx", 0, 1, devices);
}

/// Bytes that a link has carried, both ways together.
std::uint64_t carried_bytes(int link) {
  std::uint64_t sum = 0;
  for (const char* const way : {"rx", "tx"}) {
    std::uint64_t bytes = 0;
    std::ifstream("/sys/class/net/eth" + std::to_string(link) + "/statistics/" + way + "_bytes") >>
        bytes;
    sum += bytes;
  }
  return sum;
}

/// Transfers until the first link carries bytes again.
void bring_back(Caller& caller) {
  const Instant end = Clock::now() + kBackMax;
  const std::uint64_t before = carried_bytes(0);
  while (carried_bytes(0) - before < Caller::kAreaBytes) {
    REQUIRE(Clock::now() < end);
    const Told what = caller.go_on(Way::kGet, Load::kBusy, Clock::now() + 500ms);
    INFO(what.error);
    REQUIRE(what.status == HO_OK);
  }
}

TEST_CASE("faults: a transfer survives the cut of one of two RDMA links") {
  const Far far;
  if (!far.there()) return;
  FarLink link(far.file);
  for (const Way way : {Way::kGet, Way::kPut}) {
    INFO(name_of(way));
    const auto job = new_job(far.pool, kAllDevices);
    Caller& caller = job->caller();
    bring_back(caller);  // a slow machine may have started without it
    const std::uint64_t before[] = {carried_bytes(0), carried_bytes(1)};
    auto told = std::async(std::launch::async,
                           [&] { return caller.go_on(way, Load::kBusy, Clock::now() + 6s); });
    CHECK(eventually(3s, [&] {
      return carried_bytes(0) - before[0] > Caller::kAreaBytes &&
             carried_bytes(1) - before[1] > Caller::kAreaBytes;
    }));
    link.set("down");
    const Told what = told.get();
    INFO(ho_status_name(what.status) << ": " << what.error);
    REQUIRE(what.status == HO_OK);
    CHECK(caller.right());
    // Overwrites all bytes that were put, so that a late write of the old ones would show.
    caller.take_back();
    REQUIRE(caller.batch(Way::kPut).status == HO_OK);
    link.set("up");
    std::this_thread::sleep_for(3s);
    CHECK_FALSE(caller.right());  // the bytes read back are not those of the last put
    CHECK(caller.untouched());
    const Instant up = Clock::now();
    bring_back(caller);
    std::cout << name_of(way) << ": the link carries bytes again "
              << std::chrono::duration_cast<milliseconds>(Clock::now() - up).count()
              << " ms after it could\n";
  }
}

TEST_CASE("faults: a job that begins while one of two RDMA links is cut uses the other one") {
  const Far far;
  if (!far.there()) return;
  FarLink link(far.file);
  link.set("down");
  const auto job = new_job(far.pool, kAllDevices);
  CHECK(job->caller().right());
  CHECK(job->caller().batch(Way::kPut).status == HO_OK);
  link.set("up");
  bring_back(job->caller());
  CHECK(job->caller().right());
}

TEST_CASE("faults: a job whose only RDMA link is cut fails, other and new jobs go on") {
  const Far far;
  if (!far.there()) return;
  FarLink link(far.file);
  for (const Way way : {Way::kGet, Way::kPut}) {
    INFO(name_of(way));
    const auto other = new_job(far.pool, kSecondDevice);
    auto job = new_job(far.pool, kFirstDevice);
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
    // The link is still cut. The job on the other link has not noticed, and there is room.
    CHECK(other->caller().right());
    CHECK(job->caller().untouched());
    job.reset();
    job = new_job(far.pool, kAllDevices);
    CHECK(job->caller().right());
    std::cout << name_of(way) << ": " << ho_status_name(what.status) << " after "
              << std::chrono::duration_cast<milliseconds>(what.at - cut).count() << " ms\n";
    link.set("up");
  }
}

}  // namespace
}  // namespace ho::test
