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

constexpr Emulation kNo = Emulation::kForbidden;
constexpr Emulation kYes = Emulation::kAllowed;

TEST_CASE(
    "provider names: a target of no provider's takes the best device, TCP only where allowed") {
  const Names devices = {"net", "verbs;ofi_rxm", "efa", "verbs;ofi_rxd"};
  CHECK(*choose_provider("", devices, kNo) == "efa");
  CHECK(*choose_provider("", Names{"verbs;ofi_rxm"}, kNo) == "verbs;ofi_rxm");
  CHECK(*choose_provider("", kOld, kYes) == "net");
  CHECK(*choose_provider("", kNew, kYes) == "tcp");
  CHECK(*choose_provider("", Names{"tcp", "efa"}, kYes) == "efa");
  for (const Names& without : {Names{}, kOld, kNew, Names{"shm"}}) {
    const auto none = choose_provider("", without, kNo);
    REQUIRE_FALSE(none.ok());
    CHECK(none.error().code() == Errc::kUnsupported);
    CHECK(none.error().context().find("use the driver tcp") != std::string::npos);
  }
}

TEST_CASE("provider names: one that is named is that one and no other") {
  CHECK(*choose_provider("net", kOld, kYes) == "net");
  CHECK(*choose_provider("net", kNew, kYes) == "tcp");                  // its later name
  CHECK(*choose_provider("net", Names{"tcp;ofi_rxm"}, kYes) == "net");  // it has none
  CHECK(*choose_provider("tcp", kOld, kYes) == "tcp;ofi_rxm");
  CHECK(*choose_provider("tcp;ofi_rxm", kNew, kYes) == "tcp;ofi_rxm");
  CHECK(*choose_provider("verbs", Names{"verbs;ofi_rxm"}, kNo) == "verbs;ofi_rxm");
  for (const char* name : {"net", "tcp", "tcp;ofi_rxm", "shm", "udp", "nonesuch"}) {
    const auto refused = choose_provider(name, kOld, kNo);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().context().find("allow_emulation") != std::string::npos);
  }
}

TEST_CASE("provider names: both ends of a transfer find each other across the change of names") {
  CHECK(*choose_provider_towards("net", "", kOld, kYes) == "net");
  CHECK(*choose_provider_towards("net", "", kNew, kYes) == "tcp");
  CHECK(*choose_provider_towards("tcp", "", kOld, kYes) == "net");
  CHECK(*choose_provider_towards("tcp", "net", kOld, kYes) == "net");
  CHECK(choose_provider_towards("net", "", kOld, kNo).error().code() == Errc::kUnsupported);
  CHECK(*choose_provider_towards("efa", "", kOld, kNo) == "efa");
}

TEST_CASE("provider names: what speaks another protocol is not taken for its namesake") {
  CHECK(*choose_provider_towards("tcp;ofi_rxm", "", kNew, kYes) == "tcp;ofi_rxm");
  CHECK(*choose_provider_towards("tcp;ofi_rxm", "tcp", kOld, kYes) == "tcp;ofi_rxm");
  for (const auto& [theirs, named, here] :
       {std::tuple<std::string, std::string, Names>{"tcp", "tcp", kOld},
        {"tcp;ofi_rxm", "net", kOld},
        {"tcp;ofi_rxm", "tcp", kNew},
        {"efa", "verbs", Names{"verbs;ofi_rxm"}}}) {
    INFO(theirs << " from " << named);
    const auto refused = choose_provider_towards(theirs, named, here, kYes);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code() == Errc::kInvalidArgument);
  }
}

TEST_CASE("provider names: memory is served without an alias only where no process copies") {
  CHECK(serves_by_device("verbs;ofi_rxm"));
  for (const char* name : {"verbs;ofi_rxd", "efa", "net", "tcp", "tcp;ofi_rxm", "udp;ofi_rxd"}) {
    CHECK_FALSE(serves_by_device(name));
  }
}

}  // namespace
}  // namespace ho::transport
