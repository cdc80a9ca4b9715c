#include <catch2/catch.hpp>

#include <string>

#include "common/model/check_graph.hpp"
#include "proto/files/convert.hpp"
#include "tests/support/temp_folder.hpp"

namespace ho::test {
namespace {

Hardware full_hardware() {
  Hardware hardware;
  hardware.name = "die";
  hardware.device_bytes = 1 << 30;
  hardware.local_ddr = TierSpec{1 << 20, {10, 1}, {20, 2}};
  hardware.remote_ddr = TierSpec{1 << 21, {30, 3}, {40, 4}};
  hardware.flash = TierSpec{1 << 22, {50, 5}, {60, 6}};
  hardware.device_port_read = Link{70, 7};
  hardware.device_port_write = Link{80, 8};
  return hardware;
}

std::string error_of(const std::string& json) {
  const auto hardware = parse_hardware(json, GraphEncoding::kJson, "hw.json");
  return hardware ? "" : hardware.error().message();
}

TEST_CASE("hardware: JSON, text and binary files give back the same machine") {
  const TempFolder folder;
  for (const char* name : {"hw.json", "hw.textproto", "hw.pb"}) {
    REQUIRE(write_hardware_file(full_hardware(), folder.path(name)).ok());
    const auto read = read_hardware_file(folder.path(name));
    REQUIRE(read.ok());
    CHECK(*read == full_hardware());
  }
}

TEST_CASE("hardware: an absent tier or port stays absent") {
  Hardware hardware;
  hardware.name = "bare";
  const auto read = parse_hardware(hardware_to_json(hardware), GraphEncoding::kJson, "hw.json");
  REQUIRE(read.ok());
  CHECK(*read == hardware);
}

TEST_CASE("hardware: an error names the field of a missing link or a size out of range") {
  CHECK(error_of(R"({"localDdr":{"capacityBytes":1}})").find("local_ddr.read.bytes_per_s") !=
        std::string::npos);
  CHECK(error_of(R"({"remoteDdr":{"read":{"bytesPerS":1}}})").find("remote_ddr.write") !=
        std::string::npos);
  CHECK(error_of(R"({"devicePortRead":{}})").find("device_port_read") != std::string::npos);
  CHECK(error_of(R"({"deviceBytes":"1125899906842625"})").find("device_bytes") !=
        std::string::npos);
  CHECK(error_of(R"({"speed":1})").find("hw.json") != std::string::npos);
  CHECK(error_of("{}").empty());
}

}  // namespace
}  // namespace ho::test
