#include "common/transport/ucx/settings.hpp"

#include <catch2/catch.hpp>

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

TEST_CASE("ucx settings: operations are chosen as the version does by itself") {
  CHECK(initiator_value({}, {1, 13, false}, "PROTO_ENABLE") == "n");
  CHECK(initiator_value({}, {1, 15, false}, "PROTO_ENABLE") == "n");
  CHECK(initiator_value({}, {1, 16, false}, "PROTO_ENABLE") == "y");
  CHECK(initiator_value({}, {2, 0, false}, "PROTO_ENABLE") == "y");
}

TEST_CASE("ucx settings: there are as many rails as devices named, and one where none is") {
  UcxDevices devices;
  CHECK(initiator_value(devices, {}, "MAX_RMA_RAILS") == "1");
  CHECK(initiator_value(devices, {}, "NET_DEVICES") == "all");
  devices.devices = "mlx5_0:1,mlx5_1:1";
  CHECK(initiator_value(devices, {}, "MAX_RMA_RAILS") == "2");
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
