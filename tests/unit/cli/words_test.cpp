#include "tools/hyperoffload/words.hpp"

#include <catch2/catch.hpp>

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
}

TEST_CASE("memory size: what is neither, or nothing, is refused") {
  for (const char* text :
       {"", "%", "0", "0%", "-5%", "60 %", "nan%", "inf%", "10001%", "12q", "6%0"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_memory_size(text));
  }
}

TEST_CASE("closest names: best first, each once, none that is far") {
  const std::vector<std::string_view> names{"layer1.up", "layer2.up", "layer1.up", "loss"};
  const auto close = closest_names("layer1.upp", names, 3);
  REQUIRE(close.size() == 2);
  CHECK(close[0] == "layer1.up");
  CHECK(close[1] == "layer2.up");
  CHECK(closest_names("zzzzzzzz", names, 3).empty());
}

TEST_CASE("closest names: a part of a name finds it") {
  CHECK(closest_names("oss", {"a.very.long.name.of.a.loss.tensor"}, 1).size() == 1);
}

TEST_CASE("printable: escape sequences lose their power") {
  CHECK(printable("a\x1b[31mb\n") == "a?[31mb?");
  CHECK(printable("a\xc2\x85\xe2\x80\xae"
                  "b") == "a??b");  // next line, right-to-left override
  CHECK(printable("\xc2\x9b"
                  "31m") == "?31m");                           // a terminal's other escape
  CHECK(printable("\xff\xc3x\xc0\x8a\xe2\x80") == "??x????");  // not UTF-8
  CHECK(printable("Schichtenl\xc3\xa4nge \xe5\xb1\x82 \xf0\x9f\x99\x82") ==
        "Schichtenl\xc3\xa4nge \xe5\xb1\x82 \xf0\x9f\x99\x82");
}

}  // namespace
}  // namespace ho::cli
