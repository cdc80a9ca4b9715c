#include "client/pool/path_finder.hpp"

#include <catch2/catch.hpp>
#include <chrono>
#include <map>
#include <utility>

#include "tests/support/sim_transport.hpp"
#include "tests/support/stderr_capture.hpp"

namespace ho::client {
namespace {

/// Makes simulated drivers: one network each, whose peers are at the address "there".
struct Drivers {
  test::SimClock clock;
  std::map<std::string, test::SimFabric> fabrics;
  std::vector<std::string> asked;  ///< in order
  std::string missing;             ///< one that cannot be made here

  [[nodiscard]] PathFinder finder(const char* allowed) {
    return PathFinder(
        *parse_allowed(allowed), [this](const std::string& name) { return make(name); }, clock);
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

HelloReply far_node() {
  HelloReply hello;
  hello.boot_id = "another machine";
  hello.drivers = {{"ucx", "there"}, {"ofi", "there"}};
  return hello;
}

TEST_CASE("path finder: a driver that does not reach the node gives way to the next, with reason") {
  Drivers drivers;
  drivers.fabrics["ofi"].add_peer("there");  // and nobody in ucx's network
  auto paths = drivers.finder("auto");
  const auto path = paths.reach(far_node(), "n");
  REQUIRE(path.ok());
  CHECK(path->choice.endpoint.driver == "ofi");
  CHECK(path->choice.reason.find("ucx: ") != std::string::npos);
  const auto explained = paths.explain(far_node(), drivers.soon());
  REQUIRE(explained.ok());
  CHECK(explained->reason == path->choice.reason);
  const auto found = paths.take();
  REQUIRE(found.size() == 1);
  CHECK(found.front().name == "ofi");
}

TEST_CASE("path finder: a driver that cannot be made here is asked for once, and passed over") {
  Drivers drivers;
  drivers.missing = "ucx";
  drivers.fabrics["ofi"].add_peer("there");
  auto paths = drivers.finder("auto");
  std::string logged;
  {
    const test::StderrCapture captured;
    for (int node = 0; node < 2; ++node) {
      const auto path = paths.reach(far_node(), "n");
      REQUIRE(path.ok());
      CHECK(path->choice.reason.find("ucx: ucx is not for this machine") != std::string::npos);
    }
    logged = captured.text();
  }
  CHECK(drivers.asked == std::vector<std::string>{"ucx", "ofi"});
  CHECK(count(logged, "cannot be used here") == 1);  // it is this machine's matter, not each node's
  CHECK(count(logged, "driver=ucx") == 1);
  const auto explained = drivers.finder("auto").explain(far_node(), drivers.soon());
  REQUIRE(explained.ok());
  CHECK(explained->endpoint.driver == "ofi");
}

TEST_CASE("path finder: a node that is moved is reached at the new address alone") {
  Drivers drivers;
  drivers.fabrics["ofi"].add_peer("there");
  drivers.fabrics["ofi"].add_peer("own");
  auto paths = drivers.finder("ofi");
  const auto path = paths.reach(far_node(), "n");
  REQUIRE(path.ok());
  CHECK_FALSE(paths.move(far_node(), {"ofi", "nowhere"}, path->peer).ok());
  const auto peer = paths.move(far_node(), {"ofi", "own"}, path->peer);
  REQUIRE(peer.ok());
  CHECK(*peer != path->peer);
  const auto found = paths.take();
  REQUIRE(found.size() == 1);
  CHECK(found.front().driver.transport->attach(path->peer, {}).error().code() ==
        Errc::kUnavailable);
}

TEST_CASE("path finder: no driver is made that no node needs") {
  Drivers drivers;
  drivers.fabrics["ofi"].add_peer("there");
  REQUIRE(drivers.finder("ofi").reach(far_node(), "n").ok());
  CHECK(drivers.asked == std::vector<std::string>{"ofi"});
  REQUIRE(drivers.finder("ofi").explain(far_node(), drivers.soon()).ok());
  CHECK(drivers.asked == std::vector<std::string>{"ofi"});
}

TEST_CASE("path finder: the error for a node that nothing reaches has what each driver said") {
  Drivers drivers;
  auto paths = drivers.finder("auto");
  const auto path = paths.reach(far_node(), "n");
  REQUIRE_FALSE(path.ok());
  CHECK(path.error().code() == Errc::kUnavailable);
  CHECK(path.error().context().find("ucx: ") != std::string::npos);
  CHECK(path.error().context().find("ofi: ") != std::string::npos);
  CHECK(paths.take().empty());
  CHECK(drivers.finder("local").reach(far_node(), "n").error().code() == Errc::kUnsupported);
}

}  // namespace
}  // namespace ho::client
