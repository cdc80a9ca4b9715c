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
  hardware.links = {{"root", 90, 91}, {"pool", 92, 93}};
  hardware.paths = {{{"root"}, {"root", "pool"}, {}}, {{}, {"pool"}, {"root"}}};
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

TEST_CASE("hardware: wrong shared links and paths are refused by name") {
  const auto refuses = [](const std::string& links, const std::string& paths,
                          const std::string& words) {
    const std::string json =
        R"({"localDdr":{"read":{"bytesPerS":1},"write":{"bytesPerS":1}},"links":[)" + links +
        R"(],"paths":[)" + paths + "]}";
    INFO(json);
    INFO(error_of(json));
    CHECK(error_of(json).find(words) != std::string::npos);
  };
  const std::string root = R"({"name":"root","readBytesPerS":5,"writeBytesPerS":6})";
  const std::string path = R"({"localDdr":["root"]})";
  CHECK(error_of(R"({"localDdr":{"read":{"bytesPerS":1},"write":{"bytesPerS":1}},"links":[)" +
                 root + R"(],"paths":[)" + path + "]}")
            .empty());
  refuses(root + "," + root, path, "two are named \"root\"");
  refuses(R"({"name":"root","readBytesPerS":5})", path, "\"root\".write_bytes_per_s: 0");
  refuses(R"({"readBytesPerS":5,"writeBytesPerS":6})", path, "links[0].name");
  refuses(root, R"({"localDdr":["rout"]})", "paths[0].local_ddr: there is no link \"rout\"");
  refuses(root, path + R"(,{"localDdr":["root","root"]})", "paths[1].local_ddr: names link");
  refuses(root, R"({"flash":["root"]})", "paths[0].flash: the hardware has no such tier");
  refuses(root, "", "paths: missing");
}

}  // namespace
}  // namespace ho::test
