#include "common/cli/values.hpp"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "tests/support/temp_folder.hpp"

namespace ho::cli {
namespace {

TEST_CASE("memory size: bytes with and without a unit") {
  CHECK(parse_memory_size("4096")->bytes == 4096);
  CHECK(parse_memory_size("28GiB")->bytes == 28ULL << 30U);
}

TEST_CASE("memory size: a share is of the peak, rounded down") {
  const auto size = parse_memory_size("60%");
  REQUIRE(size);
  CHECK(size->of(1001) == 600);
  CHECK(parse_memory_size("12.5%")->of(1000) == 125);
  CHECK(parse_memory_size("60%")->of(0) == 1);  // a size that can be planned with
}

TEST_CASE("memory size: what is neither, or nothing, is refused") {
  for (const char* text :
       {"", "%", "0", "0%", "-5%", "60 %", "nan%", "inf%", "10001%", "12q", "6%0"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_memory_size(text));
  }
}

TEST_CASE("files: an output that is an input or another output is refused, links included") {
  namespace fs = std::filesystem;
  test::TempFolder folder;
  const std::string graph = folder.path("graph");
  std::ofstream(graph) << "bytes";
  fs::create_symlink(graph, folder.path("symbolic"));
  fs::create_hard_link(graph, folder.path("hard"));
  fs::create_directory(folder.path("deeper"));
  fs::create_directory_symlink(folder.path("deeper"), folder.path("folder"));
  const std::string a = folder.path("deeper") + "/new";
  for (const std::string& output :
       {graph, folder.path("symbolic"), folder.path("hard"), folder.path("deeper") + "/../graph"}) {
    CAPTURE(output);
    CHECK(check_files({{graph}, {output}}).error().code() == Errc::kInvalidArgument);
  }
  // Files that are not there yet.
  CHECK_FALSE(check_files({{}, {a, folder.path("folder") + "/new"}}).ok());
  CHECK_FALSE(check_files({{}, {a, "", folder.path("deeper") + "/./new"}}).ok());
  CHECK(check_files({{graph}, {a, folder.path("new"), "", ""}}).ok());
  CHECK(check_files({{graph}, {"/dev/null", "/dev/null"}}).ok());
}

}  // namespace
}  // namespace ho::cli
