#include "client/pool/paths/path_finder.hpp"

#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "common/transport/driver_names.hpp"
#include "tests/support/sim_transport.hpp"
#include "tests/support/stderr_capture.hpp"
#include "tests/unit/client/fake_node.hpp"

namespace ho::client {
namespace {

/// Makes simulated drivers: one network each, whose peers are at the address "there".
struct Drivers {
  test::SimClock clock;
  std::map<std::string, test::SimFabric> fabrics;
  std::vector<std::string> asked;  ///< one that does not exist on this machine
  std::string missing;             ///< one that cannot be made here

  [[nodiscard]] PathFinder finder(const char* allowed) {
    return PathFinder(
        *transport::parse_driver_names(allowed),
        [this](const std::string& name) { return make(name); }, clock);
  }
  [[nodiscard]] TimePoint soon() const { return clock.now() + std::chrono::seconds(2); }
  Result<Engine::Driver> make(const std::string& name) {
    asked.push_back(name);
    if (name == missing) return Error(Errc::kUnsupported, name + " is not for this machine");
    Engine::Driver driver;
    driver.transport =
        std::make_unique<test::SimTransport>(fabrics[name], clock, test::SimLink{}, 1);
    return driver;
  }
};

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

void run_here(const std::function<void()>& work) { work(); }

FakeNode far_node() { return FakeNode({{"ucx"}, {"tcp"}}); }

TEST_CASE("path finder: a driver that does not reach the node gives way to the next, with reason") {
  Drivers drivers;
  drivers.fabrics["tcp"].add_peer("there");  // ucx's network has no peer
  auto paths = drivers.finder("auto");
  FakeNode node = far_node();
  const auto path = paths.reach(node, "n");
  REQUIRE(path.ok());
  CHECK(path->choice.driver == "tcp");
  CHECK(path->choice.reason.find("ucx: ") != std::string::npos);
  CHECK(node.asked == std::vector<std::string>{"ucx", "tcp"});
  CHECK(node.open == std::set<SessionId>{path->session.id});  // the other one is closed
  const auto explained = paths.explain(node, drivers.soon());
  REQUIRE(explained.ok());
  CHECK(explained->reason == path->choice.reason);
  CHECK(node.open.size() == 1);
  const auto found = paths.take(run_here);
  REQUIRE(found.size() == 1);
  CHECK(found.front().name == "tcp");
}

TEST_CASE("path finder: a driver that does not exist here is tried once, and skipped") {
  Drivers drivers;
  drivers.missing = "ucx";
  drivers.fabrics["tcp"].add_peer("there");
  auto paths = drivers.finder("auto");
  std::string logged;
  FakeNode node = far_node();
  {
    const test::StderrCapture captured;
    for (int time = 0; time < 2; ++time) {
      const auto path = paths.reach(node, "n");
      REQUIRE(path.ok());
      CHECK(path->choice.reason.find("ucx: ucx is not for this machine") != std::string::npos);
    }
    logged = captured.text();
  }
  CHECK(drivers.asked == std::vector<std::string>{"ucx", "tcp"});
  CHECK(node.asked == std::vector<std::string>{"tcp", "tcp"});
  CHECK(count(logged, "cannot be used here") == 1);  // once for this machine, not for each node
  CHECK(count(logged, "driver=ucx") == 1);
  const auto explained = drivers.finder("auto").explain(node, drivers.soon());
  REQUIRE(explained.ok());
  CHECK(explained->driver == "tcp");
}

TEST_CASE("path finder: a node that gives no session is not asked for another driver's") {
  Drivers drivers;
  FakeNode node = far_node();
  node.refusal = Error(Errc::kUnavailable, "it is draining");
  auto paths = drivers.finder("auto");
  const auto path = paths.reach(node, "n");
  REQUIRE_FALSE(path.ok());
  CHECK(path.error().context() == "it is draining");
  CHECK(node.asked == std::vector<std::string>{"ucx"});
  const auto explained = paths.explain(node, drivers.soon());
  REQUIRE(explained.ok());
  CHECK(explained->driver == "ucx");
  CHECK(explained->reason.find("not tried: it is draining") != std::string::npos);
}

TEST_CASE("path finder: no driver is made that no node needs") {
  Drivers drivers;
  drivers.fabrics["tcp"].add_peer("there");
  FakeNode node = far_node();
  REQUIRE(drivers.finder("tcp").reach(node, "n").ok());
  CHECK(drivers.asked == std::vector<std::string>{"tcp"});
  REQUIRE(drivers.finder("tcp").explain(node, drivers.soon()).ok());
  CHECK(drivers.asked == std::vector<std::string>{"tcp"});
}

TEST_CASE("path finder: nodes that come later are reached by the drivers that were taken") {
  Drivers drivers;
  drivers.fabrics["tcp"].add_peer("there");
  auto paths = drivers.finder("tcp,ofi");
  FakeNode first({{"tcp"}});
  REQUIRE(paths.reach(first, "n").ok());
  int on_owner = 0;
  const auto taken = paths.take([&](const std::function<void()>& work) {
    on_owner += 1;
    work();
  });
  REQUIRE(taken.size() == 1);
  FakeNode later({{"ofi"}, {"tcp"}});
  const auto path = paths.reach(later, "later");
  REQUIRE(path.ok());
  CHECK(path->choice.driver == "tcp");
  CHECK(later.asked == std::vector<std::string>{"tcp"});
  CHECK(on_owner == 1);
  CHECK(drivers.asked == std::vector<std::string>{"tcp"});
  FakeNode other({{"ofi"}});
  CHECK(paths.reach(other, "other").error().code() == Errc::kUnsupported);
  CHECK(drivers.asked == std::vector<std::string>{"tcp"});
}

TEST_CASE("path finder: nodes that come later are reached by tcp, also where none was before") {
  Drivers drivers;
  drivers.fabrics["local"].add_peer("there");
  drivers.fabrics["tcp"].add_peer("there");
  auto paths = drivers.finder("auto");
  const auto taken = paths.take(run_here);
  REQUIRE(taken.size() == 1);
  CHECK(taken.front().name == "tcp");
  FakeNode later({{"tcp"}});
  const auto path = paths.reach(later, "later");
  REQUIRE(path.ok());
  CHECK(path->choice.driver == "tcp");
  CHECK(drivers.finder("ofi,ucx").take(run_here).empty());  // it is not allowed
  drivers.missing = "tcp";
  CHECK(drivers.finder("auto").take(run_here).empty());
}

TEST_CASE("path finder: the error for a node that nothing reaches has what each driver said") {
  Drivers drivers;
  auto paths = drivers.finder("auto");
  FakeNode node = far_node();
  const auto path = paths.reach(node, "n");
  REQUIRE_FALSE(path.ok());
  CHECK(path.error().code() == Errc::kUnavailable);
  CHECK(path.error().context().find("ucx: ") != std::string::npos);
  CHECK(path.error().context().find("tcp: ") != std::string::npos);
  CHECK(node.open.empty());
  CHECK(paths.take(run_here).size() == 1);  // tcp, for nodes that come later
  CHECK(drivers.finder("local").reach(node, "n").error().code() == Errc::kUnsupported);
}

}  // namespace
}  // namespace ho::client
