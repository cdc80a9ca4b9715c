// A link that is cut and comes back: client and daemon in network namespaces of their own.
#include <hyperoffload/hyperoffload.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <thread>

#include "tests/integration/client/two_nodes.hpp"
#include "tests/integration/faults/caller.hpp"
#include "tests/integration/faults/link.hpp"
#include "tests/support/skip.hpp"

namespace ho::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kToldMax = 5000ms;
constexpr int kLeaseMs = 1000;

/// The process's one link; nullptr where there can be none.
Link* the_link() {
  static const Result<std::unique_ptr<Link>> link = Link::create();
  if (link) return link->get();
  skip(link.error().message());
  return nullptr;
}

/// One node at the far end of the link.
class FarNode {
 public:
  explicit FarNode(const Link& link) {
    DaemonProcess::Spec spec;
    spec.config = small_config(folder_, std::string("insecure: true\ntcp_listen: \"") + Link::kFar +
                                            ":7700\"\nofi { address: \"" + Link::kFar + "\" }\n");
    // Long enough for the cuts that are to be survived.
    const std::size_t at = spec.config.find("lease_ms: 500");
    spec.config.replace(at, 13, "lease_ms: " + std::to_string(kLeaseMs));
    spec.network = link.far_namespace();
    daemon_ = std::make_unique<DaemonProcess>(folder_, "far", spec);
    (void)connect(near_address());
  }
  [[nodiscard]] std::string address() const { return std::string("tcp:") + Link::kFar + ":7700"; }
  /// Not over the link.
  [[nodiscard]] std::string near_address() const { return unix_address(folder_); }
  [[nodiscard]] std::uint64_t granted_bytes() const {
    const auto status = connect(near_address())->status(soon());
    REQUIRE(status.ok());
    return status->ddr_granted_bytes;
  }

 private:
  TempFolder folder_;
  std::unique_ptr<DaemonProcess> daemon_;
};

struct Job {
  explicit Job(const FarNode& node) {
    std::string why;
    pool.reset(try_connect(node.address(), "ofi", 0, why));
    INFO(why);
    REQUIRE(pool != nullptr);
    REQUIRE(ho_allocate(pool.get(), Caller::kAreaBytes, &memory) == HO_OK);
    caller = std::make_unique<Caller>(pool.get(), memory, 0);
    REQUIRE(caller->batch(Way::kPut).status == HO_OK);
  }
  ~Job() {
    caller.reset();
    ho_free(pool.get(), memory);
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  PoolHandle pool;
  ho_allocation* memory = nullptr;
  std::unique_ptr<Caller> caller;
};

TEST_CASE("faults: a cut link is told within 5 s, and jobs at the far end do not notice") {
  Link* const link = the_link();
  if (link == nullptr) return;
  FarNode node(*link);
  Bystander other(node.near_address(), "local");
  for (const Way way : {Way::kGet, Way::kPut}) {
    for (const Load load : {Load::kIdle, Load::kBusy}) {
      INFO(name_of(way) << ", " << name_of(load));
      auto job = std::make_unique<Job>(node);
      auto told = std::async(std::launch::async,
                             [&] { return job->caller->go_on(way, load, Clock::now() + 20s); });
      std::this_thread::sleep_for(30ms);
      REQUIRE(link->down());
      const Instant fault = Clock::now();
      const Told what = told.get();
      INFO(ho_status_name(what.status) << ": " << what.error);
      CHECK((what.status == HO_DEADLINE || what.status == HO_UNAVAILABLE));
      CHECK(what.at - fault < kToldMax);
      job->caller->take_back();
      const Instant ending = Clock::now();
      REQUIRE(link->up());
      std::this_thread::sleep_for(300ms);  // what was under way would come now
      CHECK(job->caller->untouched());
      job.reset();
      CHECK(Clock::now() - ending < kToldMax);
      const Instant again = Clock::now();
      Job next(node);
      CHECK(next.caller->right());
      CHECK(Clock::now() - again < 2s);
    }
  }
  CHECK(other.end() == "");
  CHECK(eventually(milliseconds(kLeaseMs + 1000), [&] { return node.granted_bytes() == 0; }));
}

TEST_CASE("faults: a link that comes back before the deadline is not noticed") {
  Link* const link = the_link();
  if (link == nullptr) return;
  FarNode node(*link);
  Job job(node);
  for (const Way way : {Way::kGet, Way::kPut}) {
    auto told = std::async(std::launch::async, [&] {
      return job.caller->go_on(way, Load::kBusy, Clock::now() + 1500ms);
    });
    std::this_thread::sleep_for(100ms);
    REQUIRE(link->down());
    std::this_thread::sleep_for(200ms);
    REQUIRE(link->up());
    const Told what = told.get();
    INFO(name_of(way) << ": " << what.error);
    CHECK(what.status == HO_OK);
    CHECK(job.caller->right());
  }
}

}  // namespace
}  // namespace ho::test
