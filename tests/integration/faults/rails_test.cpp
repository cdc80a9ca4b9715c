// A daemon with two rails, of which one is cut, with client and daemon in separate network
// namespaces.
#include <hyperoffload/hyperoffload.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <thread>

#include "tests/integration/client/two_nodes.hpp"
#include "tests/integration/faults/caller.hpp"
#include "tests/integration/faults/job.hpp"
#include "tests/integration/faults/link.hpp"
#include "tests/support/patience.hpp"
#include "tests/support/skip.hpp"

namespace ho::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

/// The process's two links; nullptr if namespaces are not available.
Link* the_links() {
  static const Result<std::unique_ptr<Link>> links = Link::create(2);
  if (links) return links->get();
  skip(links.error().message());
  return nullptr;
}

/// A node at the far ends. Its control socket is a Unix socket, so neither link carries control.
class FarNode {
 public:
  explicit FarNode(const Link& links) {
    DaemonProcess::Spec spec;
    spec.config =
        small_config(folder_, std::string("insecure: true\ntcp { address: \"") + Link::kFar +
                                  "\" }\ntcp { address: \"" + Link::kSecondFar + "\" }\n");
    spec.network = links.far_namespace();
    daemon_ = std::make_unique<DaemonProcess>(folder_, "far", spec);
    (void)connect(address());
  }
  [[nodiscard]] std::string address() const { return unix_address(folder_); }

 private:
  TempFolder folder_;
  std::unique_ptr<DaemonProcess> daemon_;
};

/// Transfers with 64 in flight, and cuts a link during them: both links have carried bytes before,
/// and the other one carries several batches afterwards.
Told cut_while_busy(Link& links, Caller& caller, Way way, int link) {
  constexpr std::uint64_t kBatchBytes = Caller::kOps * Caller::kOpBytes;
  const std::uint64_t before[] = {links.carried_bytes(0), links.carried_bytes(1)};
  std::atomic<bool> stop{false};
  auto told = std::async(std::launch::async, [&] {
    Told last;
    do last = caller.batch(way);
    while (last.status == HO_OK && !stop.load());
    return last;
  });
  CHECK(eventually(30s, [&] {
    return links.carried_bytes(0) - before[0] > kBatchBytes &&
           links.carried_bytes(1) - before[1] > kBatchBytes;
  }));
  const bool down = links.down(link);
  const std::uint64_t at_cut = links.carried_bytes(1 - link);
  CHECK(eventually(30s, [&] { return links.carried_bytes(1 - link) - at_cut > 4 * kBatchBytes; }));
  stop.store(true);
  CHECK(down);
  return told.get();
}

TEST_CASE("faults: transfers survive the cut of one rail, and fail at the cut of the last one",
          "[time]") {
  Link* const links = the_links();
  if (links == nullptr) return;
  FarNode node(*links);
  Job job(node.address(), "tcp", 0);
  const Told what = cut_while_busy(*links, job.caller(), Way::kGet, 1);
  INFO(ho_status_name(what.status) << ": " << what.error);
  CHECK(what.status == HO_OK);
  CHECK(job.caller().right());
  CHECK(job.caller().batch(Way::kPut).status == HO_OK);
  REQUIRE(links->down(0));
  const Instant cut = Clock::now();
  const Told end = job.caller().go_on(Way::kGet, Load::kBusy, cut + 20s);
  INFO(ho_status_name(end.status) << ": " << end.error);
  CHECK((end.status == HO_DEADLINE || end.status == HO_UNAVAILABLE));
  CHECK(end.at - cut < within(5s));
  for (const int link : {0, 1}) REQUIRE(links->up(link));
  std::this_thread::sleep_for(1s);  // time for the kernel to notice the cut
}

TEST_CASE("faults: bytes that a cut rail had not sent never arrive once its link is back") {
  Link* const links = the_links();
  if (links == nullptr) return;
  FarNode node(*links);
  Job job(node.address(), "tcp", 0);
  const Told what = cut_while_busy(*links, job.caller(), Way::kPut, 0);
  INFO(ho_status_name(what.status) << ": " << what.error);
  REQUIRE(what.status == HO_OK);
  CHECK(job.caller().right());
  job.caller().take_back();  // overwrites all bytes that were put
  REQUIRE(job.caller().batch(Way::kPut).status == HO_OK);
  REQUIRE(links->up(0));
  std::this_thread::sleep_for(2s);    // TCP would resend lost bytes within this time
  CHECK_FALSE(job.caller().right());  // the bytes read back are not those of the last put
  CHECK(job.caller().untouched());
}

TEST_CASE("faults: a rail that is down from the start is unused until its link is up", "[time]") {
  Link* const links = the_links();
  if (links == nullptr) return;
  FarNode node(*links);
  REQUIRE(links->down(1));
  const Instant before = Clock::now();
  Job job(node.address(), "tcp", 0);
  CHECK(Clock::now() - before < within(3s));
  CHECK(job.caller().right());
  REQUIRE(links->up(1));
  // The client tries again and again, with longer and longer pauses.
  const std::uint64_t idle = links->carried_bytes(1);
  while (links->carried_bytes(1) - idle < Caller::kAreaBytes) {
    REQUIRE(Clock::now() - before < within(40s));
    const Told what = job.caller().go_on(Way::kGet, Load::kBusy, Clock::now() + 500ms);
    INFO(what.error);
    REQUIRE(what.status == HO_OK);
  }
  CHECK(job.caller().right());
}

}  // namespace
}  // namespace ho::test
