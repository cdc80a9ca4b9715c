#include "tools/analyzer/packing/csv.hpp"

#include <catch2/catch.hpp>

using namespace ho;
using packing::read_buffers;

namespace {

std::string complaint(const std::string& csv) {
  const auto buffers = read_buffers(csv);
  REQUIRE_FALSE(buffers.ok());
  return buffers.error().context();
}

std::string row(const std::string& fields) { return "id,lower,upper,size\n" + fields + "\n"; }

}  // namespace

TEST_CASE("packing csv: rows come back in order with an offset") {
  const auto buffers = read_buffers("id,lower,upper,size\nb,0,3,4\na,2,1152921504606846976,5\n");
  REQUIRE(buffers.ok());
  REQUIRE(buffers->size() == 2);
  CHECK(buffers->at(0).id == "b");
  CHECK(buffers->at(1).upper == packing::kNumberMax);
  CHECK(packing::write_offsets(*buffers, {7, 0}) ==
        "id,lower,upper,size,offset\nb,0,3,4,7\na,2,1152921504606846976,5,0\n");
}

TEST_CASE(
    "packing csv: line ends, blanks, a byte order mark and other column orders are accepted") {
  for (const char* csv : {"id,lower,upper,size\r\nx,1,2,3\r\n\r\n", "id,lower,upper,size\nx,1,2,3",
                          " id , lower,upper\t,size\n x ,1, 2,3 \n\n",
                          "\xef\xbb\xbfsize,upper,id,lower\n3,2,x,1\n"}) {
    INFO(csv);
    const auto buffers = read_buffers(csv);
    REQUIRE(buffers.ok());
    REQUIRE(buffers->size() == 1);
    const packing::Buffer& buffer = buffers->front();
    CHECK(buffer.id == "x");
    CHECK((buffer.lower == 1 && buffer.upper == 2 && buffer.size == 3));
  }
}

TEST_CASE("packing csv: a header alone gives an empty list") {
  const auto buffers = read_buffers("id,lower,upper,size\n");
  REQUIRE(buffers.ok());
  CHECK(buffers->empty());
}

TEST_CASE("packing csv: wrong columns are refused") {
  for (const char* csv : {"", "\n", "1,2,3,4\n", "id,lower,upper\n", "id,lower,upper,bytes\n",
                          "id,id,lower,upper\n", "id,lower,upper,size,size\n"}) {
    INFO(csv);
    CHECK(complaint(csv).find("line 1: expected the columns") == 0);
  }
}

TEST_CASE("packing csv: other columns are ignored, so the output can be packed again") {
  for (const char* csv : {"id,lower,upper,size,offset\nx,1,2,3,70\n",
                          "offset,name,id,size,upper,lower\n70,a b,x,3,2,1\n"}) {
    INFO(csv);
    const auto buffers = read_buffers(csv);
    REQUIRE(buffers.ok());
    CHECK(packing::write_offsets(*buffers, {4}) == "id,lower,upper,size,offset\nx,1,2,3,4\n");
  }
  CHECK(complaint("id,lower,upper,size,offset\nx,1,2,3\n") == "line 2: expected 5 fields, found 4");
  std::string many = "id,lower,upper,size";
  for (int i = 0; i < 61; ++i) many += ",c" + std::to_string(i);
  CHECK(complaint(many + "\n").find("line 1: expected the columns") == 0);
}

TEST_CASE("packing csv: a wrong field is named with its line") {
  CHECK(complaint(row("a,0,1,2\nb,0,x,2")) == "line 3: upper: \"x\" is not a whole number");
  CHECK(complaint(row("a,0,1,1.5")) == "line 2: size: \"1.5\" is not a whole number");
  CHECK(complaint(row("a,0,1,1e3")) == "line 2: size: \"1e3\" is not a whole number");
  CHECK(complaint(row("a,nan,1,1")) == "line 2: lower: \"nan\" is not a whole number");
  CHECK(complaint(row("a,,1,1")) == "line 2: lower: \"\" is not a whole number");
  CHECK(complaint(row("a,-1,1,1")) == "line 2: lower: \"-1\" is negative");
  CHECK(complaint(row("a,0,1,-7")) == "line 2: size: \"-7\" is negative");
  CHECK(complaint(row("a,0,1,99999999999999999999")).find("line 2: size: ") == 0);
  CHECK(complaint(row("a,0,1,1152921504606846977")) ==
        "line 2: size: \"1152921504606846977\" is beyond 2^60");
  CHECK(complaint(row("a,3,3,1")) == "line 2: upper: 3 is not above lower: 3");
  CHECK(complaint(row("a,0,1,0")) == "line 2: size: must be at least 1");
  CHECK(complaint(row(",0,1,1")) == "line 2: id: is empty");
  CHECK(complaint(row("a,0,1,1\na,1,2,1")) == "line 3: id: \"a\" occurs twice");
  CHECK(complaint(row("a,0,1")) == "line 2: expected 4 fields, found 3");
  CHECK(complaint(row("a,0,1,1,1")) == "line 2: expected 4 fields, found 5");
  CHECK(complaint(row("a,0,1,1\n\nb,0,1,1")) == "line 3: is empty");
  CHECK(complaint(row("\"a\",0,1,1")) == "line 2: id: has a quote");
  CHECK(complaint(row(std::string(257, 'a') + ",0,1,1")).find("is too long") != std::string::npos);
}

TEST_CASE("packing csv: sizes that sum beyond the limit are refused") {
  CHECK(complaint(row("a,0,1,1152921504606846976\nb,5,6,1")) ==
        "line 3: size: the sum of all sizes is above 2^60");
}
