#include "common/cli/layout.hpp"

#include <catch2/catch.hpp>
#include <sstream>

#include "common/cli/nearest.hpp"

namespace ho::cli {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST_CASE("layout: text is broken at spaces and goes on below its first word") {
  CHECK(wrapped("  key  ", "one two three", 14) == "  key  one two\n       three\n");
  CHECK(wrapped("a ", "", 80) == "a \n");
  // A word longer than the line is not cut: it may be a path that somebody copies.
  CHECK(wrapped("a ", "bb cccccccccccc", 8) == "a bb\n  cccccccccccc\n");
}

TEST_CASE("layout: columns count characters, not bytes") {
  CHECK(columns_of("Schichtenl\xc3\xa4nge") == 14);
  CHECK(columns_of("\xe5\xb1\x82") == 1);
}

TEST_CASE("layout: a table stays within 80 columns, a wide one shows everything") {
  Table table({{"NODE", Table::kRight}, {"NAME"}, {"WHY", Table::kLeft, Table::kWide}});
  table.add({"7", std::string(200, 'x'), "because"});
  table.add({"12", "short", "so"});
  for (const std::string& line : lines_of(table.text(Format::kTable))) CHECK(line.size() <= 80);
  const auto narrow = lines_of(table.text(Format::kTable));
  REQUIRE(narrow.size() == 3);
  CHECK(narrow[0] == "NODE  NAME");
  CHECK(narrow[1].substr(0, 7) == "   7  x");
  CHECK(narrow[1].substr(narrow[1].size() - 2) == "..");
  CHECK(narrow[2] == "  12  short");
  const auto wide = lines_of(table.text(Format::kWide));
  CHECK(wide[1] == "   7  " + std::string(200, 'x') + "  because");
}

TEST_CASE("layout: names from files cannot steer the terminal") {
  Table table({{"NAME"}});
  table.add({"a\x1b[31mb"});
  CHECK(table.text(Format::kTable) == "NAME\na?[31mb\n");
  CHECK(Facts("t\x1b").add("key", "v\x07").text(Format::kWide) == "t?\n  key  v?\n");
}

TEST_CASE("layout: escape sequences lose their power") {
  CHECK(printable("a\x1b[31mb\n") == "a?[31mb?");
  CHECK(printable("a\xc2\x85\xe2\x80\xae"
                  "b") == "a??b");  // next line, right-to-left override
  CHECK(printable("\xc2\x9b"
                  "31m") == "?31m");                           // a terminal's other escape
  CHECK(printable("\xff\xc3x\xc0\x8a\xe2\x80") == "??x????");  // not UTF-8
  CHECK(printable("Schichtenl\xc3\xa4nge \xe5\xb1\x82 \xf0\x9f\x99\x82") ==
        "Schichtenl\xc3\xa4nge \xe5\xb1\x82 \xf0\x9f\x99\x82");
}

TEST_CASE("nearest: best first, each once, none that is far") {
  const std::vector<std::string_view> names{"layer1.up", "layer2.up", "layer1.up", "loss"};
  const auto close = closest_names("layer1.upp", names, 3);
  REQUIRE(close.size() == 2);
  CHECK(close[0] == "layer1.up");
  CHECK(close[1] == "layer2.up");
  CHECK(closest_names("zzzzzzzz", names, 3).empty());
  CHECK(did_you_mean("los", names) == "; did you mean \"loss\"?");
  CHECK(did_you_mean("zzzzzzzz", names).empty());
}

TEST_CASE("nearest: a part of a name finds it") {
  CHECK(closest_names("oss", {"a.very.long.name.of.a.loss.tensor"}, 1).size() == 1);
}

}  // namespace
}  // namespace ho::cli
