// Which of libfabric's providers is used, for the names that it has had.
#include "common/transport/ofi/provider_names.hpp"

#include <catch2/catch.hpp>
#include <string>
#include <tuple>
#include <vector>

namespace ho::transport {
namespace {

using Names = std::vector<std::string>;

const Names kOld = {"net", "tcp;ofi_rxm"};  // libfabric 1.17
const Names kNew = {"tcp", "tcp;ofi_rxm"};  // 1.18 and later

TEST_CASE("provider names: a target of no provider's takes libfabric's TCP by whichever name") {
  CHECK(*choose_provider("", kOld) == "net");
  CHECK(*choose_provider("", kNew) == "tcp");
  CHECK(*choose_provider("", Names{"shm", "tcp", "net"}) == "net");
  for (const Names& without : {Names{}, Names{"tcp;ofi_rxm"}, Names{"shm", "verbs;ofi_rxm"}}) {
    const auto none = choose_provider("", without);
    REQUIRE_FALSE(none.ok());
    CHECK(none.error().code() == Errc::kUnsupported);
  }
}

TEST_CASE("provider names: one that is named is that one and no other") {
  CHECK(*choose_provider("net", kOld) == "net");
  CHECK(*choose_provider("net", kNew) == "tcp");                  // its later name
  CHECK(*choose_provider("net", Names{"tcp;ofi_rxm"}) == "net");  // libfabric says it has none
  CHECK(*choose_provider("tcp", kOld) == "tcp;ofi_rxm");
  CHECK(*choose_provider("tcp", kNew) == "tcp");
  CHECK(*choose_provider("tcp;ofi_rxm", kNew) == "tcp;ofi_rxm");
  CHECK(*choose_provider("verbs", Names{"verbs;ofi_rxm"}) == "verbs;ofi_rxm");
  CHECK(*choose_provider("ver", Names{"verbs;ofi_rxm"}) == "ver");
}

TEST_CASE("provider names: both ends of a transfer find each other across the change of names") {
  CHECK(*choose_provider_towards("net", "", kOld) == "net");
  CHECK(*choose_provider_towards("net", "", kNew) == "tcp");
  CHECK(*choose_provider_towards("tcp", "", kNew) == "tcp");
  CHECK(*choose_provider_towards("tcp", "", kOld) == "net");
  CHECK(*choose_provider_towards("tcp", "net", kOld) == "net");
  CHECK(*choose_provider_towards("net", "tcp", kNew) == "tcp");
}

TEST_CASE("provider names: what speaks another protocol is not taken for its namesake") {
  CHECK(*choose_provider_towards("tcp;ofi_rxm", "", kNew) == "tcp;ofi_rxm");
  CHECK(*choose_provider_towards("tcp;ofi_rxm", "", kOld) == "tcp;ofi_rxm");
  CHECK(*choose_provider_towards("tcp;ofi_rxm", "tcp", kOld) == "tcp;ofi_rxm");
  CHECK(*choose_provider_towards("efa", "", kOld) == "efa");
  for (const auto& [theirs, named, here] :
       {std::tuple<std::string, std::string, Names>{"tcp", "tcp", kOld},
        {"tcp;ofi_rxm", "net", kOld},
        {"tcp;ofi_rxm", "tcp", kNew},
        {"net", "shm", Names{"shm"}}}) {
    INFO(theirs << " from " << named);
    const auto refused = choose_provider_towards(theirs, named, here);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code() == Errc::kInvalidArgument);
  }
}

TEST_CASE("provider names: what runs over sockets, and what gives each session its own") {
  for (const char* name : {"net", "tcp", "tcp;ofi_rxm", "net;ofi_rxm", "sockets"}) {
    CHECK(runs_over_tcp(name));
  }
  for (const char* name : {"verbs;ofi_rxm", "efa", "cxi", "shm", "udp;ofi_rxd"}) {
    CHECK_FALSE(runs_over_tcp(name));
    CHECK_FALSE(separates_tenants(name));
  }
  CHECK(separates_tenants("net"));
  CHECK(separates_tenants("tcp"));
  CHECK_FALSE(separates_tenants("tcp;ofi_rxm"));
}

TEST_CASE("provider names: memory is served without an alias only where no process copies") {
  CHECK(serves_by_device("verbs;ofi_rxm"));
  for (const char* name : {"verbs;ofi_rxd", "efa", "net", "tcp", "tcp;ofi_rxm", "udp;ofi_rxd"}) {
    CHECK_FALSE(serves_by_device(name));
  }
}

}  // namespace
}  // namespace ho::transport
