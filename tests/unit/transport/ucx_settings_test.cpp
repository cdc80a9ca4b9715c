#include "common/transport/ucx/settings.hpp"

#include <catch2/catch.hpp>
#include <set>

namespace ho::transport {
namespace {

std::string value_of(const std::vector<UcxSetting>& settings, const std::string& name) {
  std::string value = "unset";
  for (const UcxSetting& setting : settings) {
    if (setting.name == name) value = setting.value;
  }
  return value;
}

std::string initiator_value(const UcxDevices& devices, const UcxSurroundings& here,
                            const std::string& name) {
  return value_of(ucx_settings(devices, UcxSide::kInitiator, here), name);
}

TEST_CASE("ucx settings: no version keeps registrations of memory that is unmapped") {
  for (const unsigned minor : {13U, 15U, 20U}) {
    INFO(minor);
    const auto target = ucx_settings({}, UcxSide::kTarget, {1, minor, false});
    CHECK(value_of(target, "RCACHE_ENABLE") == "n");
    CHECK(value_of(target, "REG_METHODS") == "direct");
  }
}

/// Sets everything in a UCX that does not know some names. @return what it says.
Result<void> apply(const std::set<std::string>& unknown) {
  return apply_ucx_settings(
      ucx_settings({}, UcxSide::kTarget, {1, 20, true}), [&](const UcxSetting& setting) {
        return unknown.count(setting.name) > 0 ? UcxAnswer::kUnknown : UcxAnswer::kTaken;
      });
}

TEST_CASE("ucx settings: names that a version does not know are passed over") {
  // 1.22 without the modules of mlx5: the families' names and REG_METHODS are long gone.
  const std::set<std::string> unknown = {
      "REG_METHODS",          "IB_REG_METHODS",       "RC_RX_QUEUE_LEN",   "UD_RX_QUEUE_LEN",
      "RC_TIMEOUT",           "RC_RETRY_COUNT",       "RC_MLX5_TIMEOUT",   "RC_MLX5_RETRY_COUNT",
      "DC_MLX5_TIMEOUT",      "DC_MLX5_RETRY_COUNT",  "UD_ETH_DGID_CHECK", "RC_MLX5_RX_QUEUE_LEN",
      "UD_MLX5_RX_QUEUE_LEN", "DC_MLX5_RX_QUEUE_LEN", "UD_TIMEOUT",        "UD_MLX5_TIMEOUT"};
  CHECK(apply(unknown).ok());
  CHECK(apply({}).ok());
  CHECK(apply({"PROTO_EMULATION_ENABLE"}).ok());
}

TEST_CASE("ucx settings: what a promise rests on is known by one name at least") {
  const std::vector<std::set<std::string>> groups = {
      {"REG_METHODS", "IB_REG_METHODS", "RCACHE_ENABLE"},
      {"RC_TIMEOUT", "RC_VERBS_TIMEOUT", "RC_MLX5_TIMEOUT", "DC_MLX5_TIMEOUT"},
      {"RC_RETRY_COUNT", "RC_VERBS_RETRY_COUNT", "RC_MLX5_RETRY_COUNT", "DC_MLX5_RETRY_COUNT"},
      {"UD_TIMEOUT", "UD_VERBS_TIMEOUT", "UD_MLX5_TIMEOUT"},
      {"TLS"},
      {"NET_DEVICES"},
      {"PROTO_ENABLE"},
      {"ZCOPY_THRESH"},
      {"KEEPALIVE_INTERVAL"}};
  for (const std::set<std::string>& group : groups) {
    INFO(*group.begin());
    const auto applied = apply(group);
    REQUIRE_FALSE(applied.ok());
    CHECK(applied.error().code() == Errc::kUnsupported);
    for (const std::string& name : group) {
      CHECK(applied.error().context().find(name) != std::string::npos);
    }
    std::set<std::string> but_one = group;
    but_one.erase(but_one.begin());
    CHECK(apply(but_one).ok());
  }
}

TEST_CASE("ucx settings: a UCX without RDMA will do where emulation is allowed, and only there") {
  UcxDevices devices;
  devices.transports = "tcp";
  const auto without_rdma = [](const UcxSetting& setting) {
    const bool rdma = std::string_view(setting.name).substr(0, 3) == "RC_" ||
                      std::string_view(setting.name).substr(0, 3) == "UD_" ||
                      std::string_view(setting.name).substr(0, 3) == "DC_";
    return rdma ? UcxAnswer::kUnknown : UcxAnswer::kTaken;
  };
  devices.allow_emulation = true;
  CHECK(apply_ucx_settings(ucx_settings(devices, UcxSide::kTarget, {}), without_rdma).ok());
  devices.allow_emulation = false;
  const auto refused =
      apply_ucx_settings(ucx_settings(devices, UcxSide::kTarget, {}), without_rdma);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().context().find("built for RDMA") != std::string::npos);
}

TEST_CASE("ucx settings: a setting that fails ends it") {
  int asked = 0;
  const auto applied = apply_ucx_settings(
      ucx_settings({}, UcxSide::kTarget, {}),
      [&](const UcxSetting&) { return ++asked == 3 ? UcxAnswer::kFailed : UcxAnswer::kTaken; });
  CHECK_FALSE(applied.ok());
  CHECK(asked == 3);
}

TEST_CASE("ucx settings: emulation is off where UCX lets us, unless it is asked for") {
  CHECK(initiator_value({}, {}, "PROTO_EMULATION_ENABLE") == "n");
  UcxDevices devices;
  devices.allow_emulation = true;
  CHECK(initiator_value(devices, {}, "PROTO_EMULATION_ENABLE") == "unset");
}

TEST_CASE(
    "ucx settings: the new choice of protocols is taken where it has gets that report errors") {
  CHECK(initiator_value({}, {1, 13, false}, "PROTO_ENABLE") == "n");
  CHECK(initiator_value({}, {1, 18, false}, "PROTO_ENABLE") == "n");
  CHECK(initiator_value({}, {1, 19, false}, "PROTO_ENABLE") == "y");
  CHECK(initiator_value({}, {2, 0, false}, "PROTO_ENABLE") == "y");
}

TEST_CASE("ucx settings: UCX takes the devices that are named, or all") {
  UcxDevices devices;
  CHECK(initiator_value(devices, {}, "NET_DEVICES") == "all");
  devices.devices = "mlx5_0:1,mlx5_1:1";
  CHECK(initiator_value(devices, {}, "NET_DEVICES") == devices.devices);
}

TEST_CASE("ucx settings: only the target asks whether its peers are alive") {
  CHECK(initiator_value({}, {}, "KEEPALIVE_INTERVAL") == "inf");
  CHECK(value_of(ucx_settings({}, UcxSide::kTarget, {}), "KEEPALIVE_INTERVAL") == "20s");
}

TEST_CASE("ucx settings: transports that emulate are refused unless that is asked for") {
  UcxDevices devices;
  for (const char* names : {"rc", "dc", "rc,dc"}) {
    devices.transports = names;
    CHECK(check_ucx_transports(devices).ok());
  }
  for (const char* names : {"tcp", "rc,tcp", "", "rc,", "all"}) {
    INFO(names);
    devices.transports = names;
    devices.allow_emulation = false;
    CHECK_FALSE(check_ucx_transports(devices).ok());
    devices.allow_emulation = true;
    CHECK(check_ucx_transports(devices).ok());
  }
}

}  // namespace
}  // namespace ho::transport
