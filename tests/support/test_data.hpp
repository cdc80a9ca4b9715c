#pragma once

#include <catch2/catch.hpp>
#include <string>

#include "proto/files/convert.hpp"
#include "proto/files/file.hpp"
#include "tools/importers/bytes/unpack.hpp"

namespace ho::test {

/// The bytes of a file of tests/data, unpacked. Fails the test where they cannot be had.
inline std::string test_data(const std::string& name) {
  INFO(name);
  auto packed = read_whole_file(std::string(HO_TEST_DATA) + "/" + name, 64U << 20U);
  REQUIRE(packed.ok());
  auto bytes = importers::unpack(*std::move(packed));
  REQUIRE(bytes.ok());
  return *std::move(bytes);
}

inline Graph reference_graph(const std::string& name) {
  auto graph = parse_graph(test_data("graphs/" + name + ".json.gz"), GraphEncoding::kJson, name);
  INFO((graph ? "" : graph.error().message()));
  REQUIRE(graph.ok());
  return *std::move(graph);
}

inline Hardware reference_hardware(const std::string& name) {
  auto hardware =
      parse_hardware(test_data("hardware/" + name + ".json"), GraphEncoding::kJson, name);
  INFO((hardware ? "" : hardware.error().message()));
  REQUIRE(hardware.ok());
  return *std::move(hardware);
}

}  // namespace ho::test
