#include <catch2/catch.hpp>
#include <string>

#include "tests/integration/client/two_nodes.hpp"
#include "tests/integration/flash/staging_client.hpp"
#include "tests/integration/gpt/gpt_program.hpp"
#include "tests/integration/gpt/json.hpp"
#include "tests/support/skip.hpp"

namespace ho::test {
namespace {

TEST_CASE("gpt: with flash in the pool the comparison makes one more run, with the same bits") {
  TempFolder folder;
  make_file(folder.file("probe"), 2U << 20U);
  if (const std::string why = no_flash_here(folder.file("probe")); !why.empty()) {
    skip(why);
    return;
  }
  TwoNodes nodes({.ddr_bytes = 64U << 20U, .flash_bytes = 64U << 20U});
  for (const char* const transport : {"local", "tcp"}) {
    const std::string dir = folder.file(transport);
    Compare gpt(with_tiny_model({"all", "--out", dir, "--pool", nodes.address(0), "--blocks", "2",
                                 "--transport", transport}));
    const int code = gpt.wait();
    INFO(gpt.err());
    REQUIRE(code == 0);
    REQUIRE(gpt.out().find("planned 40 % flash") != std::string::npos);
    const Json summary = Json::parse(read_text(dir + "/summary.json"));
    REQUIRE(summary.at("bit_identical").truth);
    REQUIRE(summary.at("runs").items.size() == 8);
    const Json& run = summary.at("runs").items.back();
    REQUIRE(run.at("label").text == "planned-40-flash");
    REQUIRE(number(run, "stage_in_bytes") > 0);
    REQUIRE(number(run, "stage_out_bytes") > 0);
  }
  Compare none(with_tiny_model({"one", "--pool", nodes.address(0), "--ddr-memory", "x%"}));
  CHECK(none.wait() == 2);
}

}  // namespace
}  // namespace ho::test
