// Calls of published objects that another thread stops, through the C ABI.
#include <hyperoffload/objects.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <hyperoffload/objects.hpp>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.hpp"
#include "tests/integration/client/objects/object_ranks.hpp"
#include "tests/integration/client/two_nodes.hpp"

namespace {

using namespace ho;
using hyperoffload::Publisher;
using hyperoffload::Subscriber;
using test::connect_pool;
using test::ObjectRanks;
using test::PoolHandle;
using test::TwoNodes;

/// A rate at which the tensor takes minutes.
constexpr std::uint64_t kSlow = 20'000;

/// Calls, and stops the call a little later. It ends soon after that.
ho_status stopped(const std::function<ho_status()>& call, const std::function<void()>& stop) {
  ho_status status = HO_OK;
  std::atomic<bool> ended = false;
  std::thread other([&] {
    status = call();
    ended = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const TimePoint begun = SteadyClock().now();
  while (!ended) {  // a call that has not begun yet is not stopped
    stop();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  other.join();
  CHECK(SteadyClock().now() - begun < std::chrono::seconds(5));
  return status;
}

}  // namespace

TEST_CASE("objects: a publish that is stopped is not visible, and can be repeated",
          "[integration]") {
  TwoNodes nodes;
  const PoolHandle pool = connect_pool(nodes.address(0), "local");
  ObjectRanks from("1:all", "-;-", {1500, 1500});
  ObjectRanks to("1:all", "-;-", {1500, 1500});
  ho_object_options slow = from.options(0, 7);
  slow.link_bytes_per_s = kSlow;
  Publisher publisher(pool.get(), slow, {from.tensor(0)});
  Subscriber reader(pool.get(), to.options(0), {to.tensor(0)});
  for (int i = 0; i < 2; ++i) {
    CHECK(stopped([&] { return ho_publish(publisher.get(), 1); }, [&] { publisher.stop(); }) ==
          HO_CANCELED);
  }
  std::uint64_t version = 0;
  CHECK(ho_acquire(reader.get(), 0, UINT64_MAX, 0, &version) == HO_NOT_FOUND);
  CHECK(stopped([&] { return ho_acquire(reader.get(), 0, UINT64_MAX, 600'000, &version); },
                [&] { reader.stop(); }) == HO_CANCELED);
}

TEST_CASE("objects: a read that is stopped writes nothing any more, and can be repeated",
          "[integration]") {
  TwoNodes nodes;
  const PoolHandle pool = connect_pool(nodes.address(0), "local");
  const std::string relay = GENERATE("", "gpu");
  INFO(relay);
  ObjectRanks from("1:all", "-;-", {1500, 1500});
  ObjectRanks to("2:gpu", "-;-", {1500, 1500});
  Publisher publisher(pool.get(), from.options(0, 7), {from.tensor(0)});
  from.fill(1);
  publisher.publish(1);
  ho_object_options options = to.options(0, relay.empty() ? 0 : 9);
  options.relay = relay.c_str();
  options.link_bytes_per_s = kSlow;
  Subscriber slow(pool.get(), options, {to.tensor(0)});
  REQUIRE(slow.acquire() == 1);
  CHECK(stopped([&] { return ho_object_read(slow.get()); }, [&] { slow.stop(); }) == HO_CANCELED);
  to.fill(2);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK(to.holds(0, 2));
  CHECK(stopped([&] { return ho_object_read(slow.get()); }, [&] { slow.stop(); }) == HO_CANCELED);
  slow.release();
  // A stop between calls is for none of them.
  options.link_bytes_per_s = 0;
  options.relay = nullptr;
  Subscriber reader(pool.get(), options, {to.tensor(0)});
  reader.stop();
  REQUIRE(reader.acquire() == 1);
  reader.stop();
  reader.read();
  CHECK(to.holds(0, 1));
}
