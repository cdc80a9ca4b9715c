#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>

#include "proto/convert.hpp"
#include "tests/support/skip.hpp"

namespace ho::test {
namespace {

TEST_CASE("graph: the reference graphs are read as they are") {
  const char* const from_env = std::getenv("HO_DATA_DIR");
  const std::filesystem::path folder = std::filesystem::path(from_env ? from_env : HO_DATA_DIR);
  if (!std::filesystem::exists(folder / "graphs")) {
    skip("no reference graphs at " + folder.string() + "; set HO_DATA_DIR");
    return;
  }
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "graphs")) {
    if (entry.path().extension() != ".json") continue;
    const auto graph = read_graph_file(entry.path());
    INFO((graph ? "" : graph.error().message()));
    CHECK(graph.ok());
    ++files;
  }
  CHECK(files > 0);
  for (const auto& entry : std::filesystem::directory_iterator(folder / "hardware")) {
    const auto hardware = read_hardware_file(entry.path());
    INFO((hardware ? "" : hardware.error().message()));
    CHECK(hardware.ok());
  }
}

}  // namespace
}  // namespace ho::test
