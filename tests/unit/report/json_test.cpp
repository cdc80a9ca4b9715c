#include "common/text/json.hpp"

#include <catch2/catch.hpp>
#include <limits>
#include <string>

namespace ho {
namespace {

TEST_CASE("json: nested values get their commas and closers") {
  JsonWriter out;
  out.begin_object().field("a", 1).key("b").begin_array().value(true).value("x").begin_object();
  out.end().end().field("c", -2).end();
  CHECK(out.text() == R"({"a":1,"b":[true,"x",{}],"c":-2})");
}

TEST_CASE("json: numbers read back equal, and values that are not finite are null") {
  JsonWriter out;
  out.begin_array().value(0.1).value(UINT64_MAX).value(std::numeric_limits<double>::infinity());
  out.end();
  CHECK(out.text() == "[0.1,18446744073709551615,null]");
}

TEST_CASE("json: strings cannot end the script element they stand in") {
  CHECK(json_quote("</script>&") == R"("\u003c/script\u003e\u0026")");
}

TEST_CASE("json: control characters, quotes and backslashes are escaped") {
  CHECK(json_quote("a\"\\\n\x01\x7f") == R"("a\u0022\u005c\u000a\u0001\u007f")");
  CHECK(json_quote(std::string("\0", 1)) == R"("\u0000")");
  CHECK(json_quote("\xe2\x80\xa8") == R"("\u2028")");
}

TEST_CASE("json: UTF-8 stays, other bytes become the replacement character") {
  CHECK(json_quote("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80") ==
        "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"");
  CHECK(json_quote("\xff") == R"("\ufffd")");
  CHECK(json_quote("\xc0\x80") == R"("\ufffd\ufffd")");            // overlong
  CHECK(json_quote("\xed\xa0\x80") == R"("\ufffd\ufffd\ufffd")");  // surrogate
  CHECK(json_quote("\xe2\x82") == R"("\ufffd\ufffd")");            // truncated
}

}  // namespace
}  // namespace ho
