#include "client/pool/paths/path_choice.hpp"

#include <catch2/catch.hpp>

#include "common/transport/driver_names.hpp"

namespace ho::client {
namespace {

const std::vector<DriverOffer> kBoth = {{"local"}, {"tcp"}};
const std::vector<DriverOffer> kFar = {{"tcp"}};

AllowedDrivers allowed(const char* text) {
  const auto parsed = transport::parse_driver_names(text);
  REQUIRE(parsed.ok());
  return *parsed;
}

TEST_CASE("path choice: the same machine is reached by local, another by a driver between nodes") {
  const auto near = choose_path(allowed("auto"), PathFacts{.offered = kBoth, .same_machine = true});
  REQUIRE(near.ok());
  CHECK(near->driver == "local");
  CHECK(near->reason == "same machine");
  const auto far = choose_path(allowed("auto"), PathFacts{.offered = kBoth, .same_machine = false});
  REQUIRE(far.ok());
  CHECK(far->driver == "tcp");
  CHECK(far->reason ==
        "between nodes (local: it is another machine; ucx: not offered by it; ofi: not offered by "
        "it)");
}

TEST_CASE("path choice: a driver is forced by naming it alone and forbidden by leaving it out") {
  const auto forced =
      choose_path(allowed("tcp"), PathFacts{.offered = kBoth, .same_machine = true});
  REQUIRE(forced.ok());
  CHECK(forced->driver == "tcp");
  CHECK(forced->reason.find("local: not allowed") != std::string::npos);
  const auto none =
      choose_path(allowed("local"), PathFacts{.offered = kBoth, .same_machine = false});
  REQUIRE_FALSE(none.ok());
  CHECK(none.error().code() == Errc::kUnsupported);
  CHECK(none.error().context().find("another machine") != std::string::npos);
}

TEST_CASE("path choice: devices come before sockets, and one that failed before is skipped") {
  const std::vector<DriverOffer> all = {{"local"}, {"tcp"}, {"ofi"}, {"ucx"}};
  PathFacts facts{.offered = all, .same_machine = false};
  const auto rdma = choose_path(allowed("auto"), facts);
  REQUIRE(rdma.ok());
  CHECK(rdma->driver == "ucx");
  facts.failed.push_back({"ucx", "no device"});
  const auto without = choose_path(allowed("auto"), facts);
  REQUIRE(without.ok());
  CHECK(without->driver == "ofi");
  CHECK(without->reason.find("ucx: no device") != std::string::npos);
  facts.failed.push_back({"ofi", "no device either"});
  const auto sockets = choose_path(allowed("auto"), facts);
  REQUIRE(sockets.ok());
  CHECK(sockets->driver == "tcp");
}

TEST_CASE("path choice: over TCP to the same machine it says that local needs the Unix socket") {
  const auto choice =
      choose_path(allowed("local,tcp"), PathFacts{.offered = kFar, .same_machine = true});
  REQUIRE(choice.ok());
  CHECK(choice->driver == "tcp");
  CHECK(choice->reason.find("Unix socket") != std::string::npos);
  CHECK_FALSE(choose_path(allowed("auto"), PathFacts{}).ok());
}

TEST_CASE("path choice: unknown and empty names of drivers are refused") {
  for (const char* text : {"", "pigeon", "local,", ",ofi", "local ofi", "auto,ofi"}) {
    INFO(text);
    CHECK_FALSE(transport::parse_driver_names(text).ok());
  }
}

}  // namespace
}  // namespace ho::client
